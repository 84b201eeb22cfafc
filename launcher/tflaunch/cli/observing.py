"""`ps`, `ls`, `events`, `wait`: see how runs stand."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tflaunch.cli.loading import json_option, say
from tflaunch.cli.naming import run_argument

if TYPE_CHECKING:
    from tflaunch.client.observer import Observer

_BETWEEN_LOOKS = 1.0  # seconds


@click.command(short_help="Show the tasks of a run.")
@run_argument
@click.option("-a", "--all", "everything", is_flag=True, help="Of a live run also the tasks that have ended well.")
@click.option("-w", "--watch", is_flag=True, help="Show it again every second, until the run has ended.")
@json_option
def ps(run: str | None, everything: bool, watch: bool, as_json: bool) -> None:
    """Show the tasks of RUN: state, host, what they use, and how far they are if they say so.

    RUN is the name of a run or job, or its beginning: the live one, else the newest. When its supervisor was killed,
    what is shown comes from the journal and from the agents on the hosts. A program says how far it is
    through $TFLAUNCH_PROGRESS.

    \b
    Example:
      tflaunch ps --watch
    """
    from tflaunch.client import runs
    from tflaunch.client.status import standing
    from tflaunch.tui import redraw
    from tflaunch.tui.layout import table

    directory = runs.find(run)
    if watch and not as_json:
        redraw.watch(_statuses(directory))
        return
    current = standing(directory)
    if as_json:
        click.echo(json.dumps(current, indent=2))
        return
    if not everything and current["exit_code"] is None:
        current["tasks"] = [task for task in current["tasks"] if task["state"] != "succeeded"]
    click.echo(table(current), nl=False)


def _statuses(directory: Path) -> Iterator[dict[str, Any]]:
    """How the run stands, once per second, for the last time when it has ended."""
    from tflaunch.client.status import standing

    while True:
        current = standing(directory)
        yield current
        if current["exit_code"] is not None or current["supervisor"] == "dead":
            return
        try:
            time.sleep(_BETWEEN_LOOKS)
        except KeyboardInterrupt:
            return


@click.command(short_help="List all runs.")
@json_option
def ls(as_json: bool) -> None:
    """List the runs of this user on this machine, the newest first.

    A run is `lost` when its supervisor was killed: `tflaunch up --resume RUN` takes over.

    \b
    Example:
      tflaunch ls --json
    """
    from tflaunch.client.run_list import overview, table
    from tflaunch.store.run_dir import runs_directory

    found = overview()
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif found:
        click.echo(table(found, time.time()), nl=False)
    else:
        say(f"no runs in {runs_directory()}")


@click.command(short_help="Show what has happened in a run.")
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until the run has ended.")
@json_option
def events(run: str | None, follow: bool, as_json: bool) -> None:
    """Show the journal of RUN: what happened, and what the supervisor did about it.

    \b
    Example:
      tflaunch events -f --json | jq -c 'select(.kind == "task_exited")'
    """
    from tflaunch.client import runs
    from tflaunch.client.observer import Observer, Outcome
    from tflaunch.store.journal_reader import JournalReader

    directory = runs.find(run)
    observer = Observer(directory) if follow else None
    journal = JournalReader(directory)
    while True:
        for record in journal.new_records():
            click.echo(json.dumps(record, separators=(",", ":")) if as_json else _as_text(record))
        if observer is None or observer.outcome is not Outcome.LIVE:
            return
        observer.wait()


def _as_text(record: dict[str, Any]) -> str:
    """One record as a line for people: when, what, and the rest as name=value."""
    from tflaunch.tui.log_printer import local_time

    rest = {name: value for name, value in record.items() if name not in ("seq", "time", "now", "kind", "plan")}
    words = " ".join(
        f"{name}={json.dumps(value) if isinstance(value, dict | list) or value == '' else value}"
        for name, value in rest.items()
        if value is not None
    )
    text = f"{local_time(record['time'], '%H:%M:%S')} {record['kind']} {words}".rstrip()
    return text.encode("utf-8", "backslashreplace").decode()  # of a path that is not UTF-8


@click.command(short_help="Wait for the end of a run.")
@run_argument
def wait(run: str | None) -> int:
    """Wait until RUN has ended, tell how, and exit with its exit code. A TensorBoard that stays is not waited for.

    \b
    Example:
      tflaunch up -d cluster.json && tflaunch wait
    """
    from tflaunch.client import runs, slurm_follow
    from tflaunch.client.follow import until_end

    def watch(observer: Observer) -> int:
        observer.catch_up()
        return until_end(observer, say)

    return slurm_follow.follow(runs.find(run), say, watch)
