"""`report`: pack a run into one file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tflaunch.cli.arguments.select import complete_runs
from tflaunch.cli.arguments.spec import say
from tflaunch.client import runs
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.explain.wording import counted, memory
from tflaunch.features.report import support_bundle as reporting
from tflaunch.features.report.support_bundle import Entry


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write to FILE, in place of what is there; - is stdout. Default: a new file RUN-report.tar.gz here.",
)
@click.option("--logs", "with_logs", is_flag=True, help="Also pack the last 4 MiB of what each task has printed.")
@click.option("--dry-run", is_flag=True, help="Only list what would be packed.")
@click.option("--show", is_flag=True, help="Only print the text that would be packed.")
def report(run: str | None, output: str | None, with_logs: bool, dry_run: bool, show: bool) -> None:
    """Pack what tflaunch knows about RUN into one file to send with a question, and print its path.

    It contains the spec, the plan, the journal and a description of this machine, and the output of tasks only with
    --logs. Secrets are replaced by ***: values of variables, options and fields whose names say so, such as API_KEY or
    password, passwords in URLs, private keys, and what has the form of a known token. Each file is listed with the
    number of replaced secrets. Secrets in any other form stay, such as cookies, lines of .netrc and arguments of
    curl -u or sshpass -p, so look with --show before you share. RUN is the name of a run or job, or a prefix of one:
    the live run is used, or else the newest.

    \b
    Example:
      tflaunch report --logs --show | less
      tflaunch report -o question.tar.gz
    """
    if output is not None and (dry_run or show):
        raise click.UsageError("-o writes a report; --dry-run and --show write none; leave out one of them")
    directory = runs.find_run(run)
    summary = reporting.diagnose(directory, with_logs)
    if dry_run or show:
        shown = sys.stdout.buffer if show else None
        _list(reporting.preview(directory, summary, shown, with_logs=with_logs), is_result=not show)
        return
    if output == "-":
        if sys.stdout.isatty():
            raise TflaunchError("stdout is a terminal; name a file with -o", EXIT_USAGE)
        _list(reporting.pack(directory, summary, sys.stdout.buffer, with_logs=with_logs))
        say(f"secrets that were found are replaced; {reporting.BLIND}")
        return
    target = Path(output or f"{directory.name}-report.tar.gz")
    try:
        entries = reporting.pack(directory, summary, target, with_logs=with_logs, replace=output is not None)
    except FileExistsError:
        raise TflaunchError(f"{target} exists; remove it, or name a file with -o", EXIT_USAGE) from None
    _list(entries)
    say(f"secrets that were found are replaced; {reporting.BLIND}")
    click.echo(target)


def _list(entries: Sequence[Entry], is_result: bool = False) -> None:
    """List a report's entries, on stdout if the list is the requested result."""
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        hidden = f"{counted(entry.hidden, 'secret')} replaced" if entry.hidden else ""
        remarks = ", ".join(filter(None, [hidden, entry.note]))
        line = f"{entry.name:<{width}}  {memory(entry.size):>6}  {remarks}".rstrip()
        click.echo(line, err=not is_result)
