"""`--drill`."""

from __future__ import annotations

import click

from tflaunch.cli.arguments.launch import Launching, RoomOption

_FLAG = "--drill"


def _check(value: str, launching: Launching) -> None:
    if launching.options.begins_later:
        raise click.UsageError(f"{_FLAG} goes with a run that begins now; leave out --queue and --matrix")
    if launching.plan is not None:
        from tflaunch.features.drills import drill

        drill.parse_drill(value, launching.plan)


OPTIONS = (
    RoomOption(
        _FLAG,
        click.option(
            _FLAG, metavar="TEXT", help="Inject these faults into the running job, and report if it recovers."
        ),
        _check,
        is_for_run=False,
    ),
)
