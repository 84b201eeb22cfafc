"""`events`: show the events of a run."""

from __future__ import annotations

import itertools
import json
from typing import Any

import click

from tflaunch.cli.arguments.select import run_argument
from tflaunch.cli.arguments.spec import json_option
from tflaunch.client import runs
from tflaunch.client.observer import Observer, open_journal
from tflaunch.tui.fold import local_time
from tflaunch_worker.readable import signal_name


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
