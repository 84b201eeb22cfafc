"""The options that `up` and `run` share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from tflaunch.cli._spec import WholeNumber, name_option, quiet_option, seconds_in, verbose_option

PRELOADED = "tensorflow"
"""The module that --preload imports."""


def _interval(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Return the interval in seconds."""
    seconds = None if value is None else seconds_in(value)
    if value is not None and not seconds:
        raise click.UsageError(f"--collect-every {value!r} is not a valid duration; write for example 10m")
    return seconds


_OPTIONS = (
    name_option,
    click.option("--log-dir", type=click.Path(path_type=Path), metavar="DIR", help="Write task logs to DIR."),
    click.option(
        "--metrics-port",
        type=WholeNumber(0, 65535),
        metavar="PORT",
        help="Serve metrics for Prometheus on this port of 127.0.0.1; 0 for any.",
    ),
    click.option(
        "--preflight/--no-preflight", default=True, help="Check before the start that the hosts can reach each other."
    ),
    click.option(
        "--collect-every",
        callback=_interval,
        metavar="DURATION",
        help="Fetch the files of the spec's `collect` at this interval, too, while the tasks run.",
    ),
    click.option("--web", is_flag=True, help="Show the run in a browser, too: print a link to a page about it."),
    click.option("-d", "--detach", is_flag=True, help="Run in the background; return when its tasks are running."),
    click.option(
        "--queue",
        is_flag=True,
        help="Begin when no other run of this user holds the hosts and GPUs (`tflaunch queue`).",
    ),
    click.option(
        "--matrix",
        multiple=True,
        metavar="NAME=V1,V2",
        help="Queue a run for each value of {matrix.NAME}; with several --matrix, for each combination.",
    ),
    verbose_option,
    quiet_option,
    click.option(
        "--preload", is_flag=True, help=f"Import {PRELOADED} once per host; fork the tasks from that process."
    ),
)


class LaunchOptions(NamedTuple):
    """The values of the shared options."""

    name: str | None
    log_dir: Path | None
    metrics_port: int | None
    preflight: bool
    detach: bool
    verbose: bool
    quiet: bool
    preload: bool
    web: bool
    collect_every: float | None = None
    queue: bool = False
    matrix: tuple[str, ...] = ()

    @property
    def is_queued(self) -> bool:
        """Whether the run begins later, in the background."""
        return self.queue or bool(self.matrix)

    @property
    def outlives_terminal(self) -> bool:
        """Whether the run goes on without the terminal that has started it."""
        return self.detach or self.is_queued


def launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options to a command, which receives their values as ``options``."""

    @functools.wraps(command)
    def with_wishes(**values: Any) -> Any:
        options = LaunchOptions(**{name: values.pop(name) for name in LaunchOptions._fields})
        return command(options=options, **values)

    decorated: Callable[..., Any] = with_wishes
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated
