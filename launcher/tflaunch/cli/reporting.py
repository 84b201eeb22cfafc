"""`report`: a run in one file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tflaunch.errors import EXIT_USAGE, TflaunchError


@click.command(short_help="Pack a run into one file, without secrets.")
@click.argument("run", required=False)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write to FILE, in place of what is there; - is stdout. Default: a new file RUN-report.tar.gz here.",
)
def report(run: str | None, output: str | None) -> None:
    """Pack what tflaunch knows about RUN into one file to send with a question, and print its path.

    In it are the plan, the journal, the last 4 MiB of each log, and what this machine is. Values of variables
    and options whose names look secret, such as API_KEY, and passwords in URLs read ***; what a program says
    in other words stays, so look before you share. RUN is the name of a run or
    job, or its beginning: the live one, else the newest.

    \b
    Example:
      tflaunch report -o question.tar.gz
    """
    from tflaunch.records import report as reporting
    from tflaunch.records import runs

    directory = runs.find(run)
    diagnosis = _diagnosis(directory)
    if output == "-":
        if sys.stdout.isatty():
            raise TflaunchError("stdout is a terminal; name a file with -o", EXIT_USAGE)
        reporting.pack(directory, diagnosis, sys.stdout.buffer)
        return
    target = Path(output or f"{directory.name}-report.tar.gz")
    try:
        reporting.pack(directory, diagnosis, target, replace=output is not None)
    except FileExistsError:
        raise TflaunchError(f"{target} exists; remove it, or name a file with -o", EXIT_USAGE) from None
    click.echo(target)


def _diagnosis(directory: Path) -> str:
    """What the journal tells about how the run stands, or how it ended."""
    from tflaunch.job import diagnosis, replay
    from tflaunch.job.states import Phase
    from tflaunch.logs.task_log import tail
    from tflaunch.records import journal, runs

    head = f"run {directory.name} {'is live' if runs.is_live(directory) else 'has no supervisor'}"
    try:
        records = journal.read(directory)
        job = replay.fold(records)
    except (TflaunchError, KeyError, TypeError, ValueError) as error:
        return f"{head}; its journal cannot be read: {error}"
    if job.phase not in (Phase.KEEPING, Phase.ENDED):
        tasks = "\n".join(f"{task.task}: {task.phase.value}, attempt {task.attempt}" for task in job.tasks.values())
        return f"{head}; it is {job.phase.value}\n{tasks}"
    logs = Path(records[0]["logs"])
    return f"{head}\n{diagnosis.summary(job, str(logs), lambda task, lines: tail(logs, task, lines))}"
