"""`--collect-every`."""

from __future__ import annotations

import click

from tflaunch.cli.arguments.launch import Launching, RoomOption
from tflaunch.cli.arguments.spec import seconds_in

_FLAG = "--collect-every"


def _interval(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Return the interval in seconds."""
    seconds = None if value is None else seconds_in(value)
    if value is not None and not seconds:
        raise click.UsageError(f"{_FLAG} {value!r} is not a valid duration; write for example 10m")
    return seconds


def _check(value: float, launching: Launching) -> None:
    if launching.engine == "slurm":
        raise click.UsageError(f"{_FLAG} is not for --on slurm, where a batch job supervises the tasks")
    if launching.plan is not None and not launching.plan.collect:
        raise click.UsageError(f'{_FLAG} needs files to collect: write for example "collect": ["outputs/**"]')


OPTIONS = (
    RoomOption(
        _FLAG,
        click.option(
            _FLAG,
            callback=_interval,
            metavar="DURATION",
            help="Fetch the files of the spec's `collect` at this interval, too, while the tasks run.",
        ),
        _check,
    ),
)
