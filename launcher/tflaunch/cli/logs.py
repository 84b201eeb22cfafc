"""`logs` and `events`: show what tasks of a run wrote, and what happened to it."""

import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tflaunch.cli.arguments.select import choose, run_and_tasks_argument, run_argument
from tflaunch.cli.arguments.spec import WholeNumber, json_option, moment_in, say
from tflaunch.client import runs
from tflaunch.client.observer import Observer, open_journal
from tflaunch.client.run_list import run_to_explain
from tflaunch.client.run_location import RunLocation, locate_run
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.plan import selectors
from tflaunch.store.log_reader import LogReader
from tflaunch.tui.fold import LogPrinter, local_time
from tflaunch_worker.readable import signal_name


@click.command()
@run_and_tasks_argument
@click.option("-f", "--follow", is_flag=True, help="Show new output as it is written, until the run has ended.")
@click.option("-n", "--tail", type=WholeNumber(0), metavar="N", help="Show only the last N lines of each task.")
@click.option("--since", metavar="T", help="Show only what was written since T: 10m ago, or 2026-01-31T12:00:00.")
@click.option("--attempt", type=WholeNumber(0), metavar="N", help="Show only attempt N.")
@click.option("-t", "--timestamps", is_flag=True, help="Show when each line was written.")
@click.option("--fold", is_flag=True, help="Show a line that many tasks wrote at once only once.")
def logs(
    words: tuple[str, ...],
    follow: bool,
    tail: int | None,
    since: str | None,
    attempt: int | None,
    timestamps: bool,
    fold: bool,
) -> int:
    """Show what tasks of RUN wrote, on all hosts and in the order of time.

    TASK is worker, worker:1, worker:0-3, host=NAME or a sidecar's name; each line begins with its task's name, unless
    only one task is selected. RUN is the name of a run or job, or a prefix of one; without it, the run that failed last
    is shown, unless another one has begun since, or -f is given: then the live one, or else the newest.

    For a job that Slurm has restarted, the output since its submission is shown; with --attempt or --tail, only that
    since the last restart.

    \b
    Example:
      tflaunch logs -f worker:0-3 --tail 20
    """
    directory, wanted = choose(words, runs.find_run if follow else run_to_explain)
    moment = None if since is None else moment_in(since, "--since")
    location = locate_run(directory)
    if follow and not _wait_until_begun(location):
        return 0
    chosen = selectors.select_tasks(runs.plan_of(directory), wanted)
    observer = Observer(directory)
    if attempt is not None:
        _require_attempt(observer, attempt, follow)
    printer = LogPrinter(chosen, timestamps, fold)
    if tail is None and attempt is None:
        _print_earlier_executions(directory, chosen, moment, printer)
    while True:
        reader = LogReader(directory, observer.logs, chosen)
        lost = reader.lost()
        for path in lost:
            say(f"{path} was moved or cut by another program: what it had is not shown; look for it beside that file")
        printer.print(reader.read(moment, attempt, tail))
        is_over = follow and _follow(observer, reader, printer)
        printer.print(reader.rest())
        printer.flush()
        if not is_over or observer.exit_code == 0 or not _wait_until_begun(location, is_again=True):
            return EXIT_INTERNAL if lost else 0
        observer, tail = Observer(directory), None


def _wait_until_begun(location: RunLocation, is_again: bool = False) -> bool:
    """Wait until a run has begun, or begins again; return whether it has."""
    try:
        if is_again and not location.begins_again(say, time.sleep, is_lost=False):
            return False
        location.wait_until_begun(say, time.sleep)
    except KeyboardInterrupt:
        return False
    return True


def _print_earlier_executions(directory: Path, chosen: Sequence[str], since: float | None, printer: LogPrinter) -> None:
    """Print the output of the run's earlier executions (of a batch job), in order."""
    for earlier, sentence in locate_run(directory).earlier_executions():
        reader = LogReader(earlier, earlier / "logs", chosen)
        printer.print(reader.read(since))
        printer.print(reader.rest())
        printer.flush()
        say(sentence)


def _require_attempt(observer: Observer, attempt: int, may_come: bool) -> None:
    """Reject a future attempt, unless the run is live and followed (``may_come``)."""
    observer.catch_up()
    last = observer.job.attempt
    if attempt > last and not (may_come and observer.outcome is runs.Outcome.LIVE):
        known = f"its attempts are 0 to {last}" if last else "its only attempt is 0"
        raise TflaunchError(f"run {observer.directory.name} has no attempt {attempt}; {known}", EXIT_USAGE)


def _follow(observer: Observer, reader: LogReader, printer: LogPrinter) -> bool:
    """Print new output until the run's end, and return True; False after Ctrl-C."""
    try:
        for _ in observer.changes(printer.patience):
            if not printer.print(reader.new_lines()):
                printer.flush()
    except KeyboardInterrupt:
        return False
    return True


@click.command()
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Show new events as they happen, until the run has ended.")
@json_option
def events(run: str | None, follow: bool, as_json: bool) -> None:
    """Show the journal of RUN: what happened, and what the supervisor did about it.

    \b
    Example:
      tflaunch events -f --json | jq -c 'select(.kind == "task_exited")'
    """
    directory = runs.find_run(run)
    changes = Observer(directory).changes() if follow else iter(())
    journal = open_journal(directory)
    for _ in itertools.chain([None], changes):
        for record in journal.new_records():
            click.echo(json.dumps(record, separators=(",", ":")) if as_json else _as_text(record))


def _as_text(record: dict[str, Any]) -> str:
    """Format a record for people: time, kind, and the rest as name=value."""
    rest = {name: value for name, value in record.items() if name not in ("seq", "time", "now", "kind", "plan")}
    if isinstance(number := rest.get("signal"), int):
        rest["signal"] = signal_name(number)
    words = " ".join(
        f"{name}={json.dumps(value) if isinstance(value, dict | list) or value == '' else value}"
        for name, value in rest.items()
        if value is not None
    )
    text = f"{local_time(record['time'], '%H:%M:%S')} {record['kind']} {words}".rstrip()
    return text.encode("utf-8", "backslashreplace").decode()  # a path may not be UTF-8
