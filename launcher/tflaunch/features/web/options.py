"""`--web`."""

from __future__ import annotations

import click

from tflaunch.cli.arguments.launch import Launching, RoomOption

_FLAG = "--web"


def _check(value: bool, launching: Launching) -> None:
    from tflaunch.features.web.command import require_server

    if launching.options.outlives_terminal or launching.engine is not None:
        raise click.UsageError(f"{_FLAG} goes with a run in this terminal; `tflaunch web` shows any other one")
    require_server()


OPTIONS = (
    RoomOption(
        _FLAG,
        click.option(_FLAG, is_flag=True, help="Show the run in a browser, too: print a link to a page about it."),
        _check,
    ),
)
