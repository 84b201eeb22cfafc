"""`--queue` and `--matrix`."""

from __future__ import annotations

from typing import Any

import click

from tflaunch.cli.arguments.launch import Launching, RoomOption

_QUEUE, _MATRIX = "--queue", "--matrix"


def _check(value: Any, launching: Launching) -> None:
    if launching.engine is not None:
        raise click.UsageError(f"--on {launching.engine} has a queue of its own; leave out {_QUEUE} and {_MATRIX}")


OPTIONS = (
    RoomOption(
        _QUEUE,
        click.option(
            _QUEUE,
            is_flag=True,
            help="Begin when no other run of this user holds the hosts and GPUs (`tflaunch queue`).",
        ),
        _check,
        is_for_later=True,
    ),
    RoomOption(
        _MATRIX,
        click.option(
            _MATRIX,
            multiple=True,
            metavar="NAME=V1,V2",
            help="Queue a run for each value of {matrix.NAME}; with several --matrix, for each combination.",
        ),
        _check,
        is_for_later=True,
    ),
)
