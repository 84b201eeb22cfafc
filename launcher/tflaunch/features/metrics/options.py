"""`--metrics-port`."""

from __future__ import annotations

import click

from tflaunch.cli.arguments.launch import RoomOption
from tflaunch.cli.arguments.spec import WholeNumber

_FLAG = "--metrics-port"
OPTIONS = (
    RoomOption(
        _FLAG,
        click.option(
            _FLAG,
            type=WholeNumber(0, 65535),
            metavar="PORT",
            help="Serve metrics for Prometheus on this port of 127.0.0.1; 0 for any.",
        ),
        goes_with_resume=True,
    ),
)
