"""The options that `up` and `run` share, and those that rooms add to them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tflaunch.cli._spec import name_option, quiet_option, verbose_option
from tflaunch.rooms import load, rooms

if TYPE_CHECKING:
    from tflaunch.plan.model import Plan

PRELOADED = "tensorflow"
"""The module that --preload imports."""


_OPTIONS = (
    name_option,
    click.option("--log-dir", type=click.Path(path_type=Path), metavar="DIR", help="Write task logs to DIR."),
    click.option(
        "--preflight/--no-preflight", default=True, help="Check before the start that the hosts can reach each other."
    ),
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
    """The values of the shared options; ``extras`` are those of rooms that were given, by name."""

    name: str | None
    log_dir: Path | None
    preflight: bool
    detach: bool
    verbose: bool
    quiet: bool
    preload: bool
    queue: bool = False
    matrix: tuple[str, ...] = ()
    extras: Mapping[str, Any] = {}

    @property
    def is_queued(self) -> bool:
        """Whether the run begins later, in the background."""
        return self.queue or bool(self.matrix)

    @property
    def outlives_terminal(self) -> bool:
        """Whether the run goes on without the terminal that has started it."""
        return self.detach or self.is_queued


class Launching(NamedTuple):
    """How a run is started: its plan, the engine of ``--on``, and whether it goes on without this terminal."""

    plan: Plan | None
    engine: str | None = None
    outlives_terminal: bool = False
    is_queued: bool = False


def _accept(value: Any, launching: Launching) -> None:
    """Accept a value."""


class RoomOption(NamedTuple):
    """An option of `up` that a room adds. Its value is in the ``extras`` of `LaunchOptions` and `RunConfig`.

    Args:
        flag: the option, such as ``--metrics-port``.
        option: what adds it to a command.
        check: raises `click.UsageError` or `TflaunchError` if a value does not go with how the run is started.
        is_for_run: whether `run` has it, too.
        goes_with_resume: whether it goes with `up --resume`.
    """

    flag: str
    option: Callable[[Callable[..., Any]], Callable[..., Any]]
    check: Callable[[Any, Launching], None] = _accept
    is_for_run: bool = True
    goes_with_resume: bool = False

    @property
    def name(self) -> str:
        """The name of its value."""
        return self.flag.removeprefix("--").replace("-", "_")


@functools.cache
def room_options() -> Mapping[str, RoomOption]:
    """Return the options of rooms by the names of their values."""
    loaded: list[RoomOption] = [load(place) for room in rooms().values() for place in room.options]
    return {option.name: option for option in loaded}


def check_extras(extras: Mapping[str, Any], launching: Launching) -> None:
    """Check the given options of rooms.

    Raises:
        click.UsageError: one of them does not go with how the run is started.
        TflaunchError: it cannot be used.
    """
    for name, value in extras.items():
        room_options()[name].check(value, launching)


def launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options, and those of rooms, to a command, which receives their values as ``options``."""
    is_run = command.__name__ == "run"
    extra = [option for option in room_options().values() if option.is_for_run or not is_run]

    @functools.wraps(command)
    def with_wishes(**values: Any) -> Any:
        given = {option.name: values.pop(option.name) for option in extra}
        extras = {name: value for name, value in given.items() if value is not None and value is not False}
        shared = {name: values.pop(name) for name in LaunchOptions._fields if name != "extras"}
        return command(options=LaunchOptions(**shared, extras=extras), **values)

    decorated: Callable[..., Any] = with_wishes
    for option in reversed(extra):
        decorated = option.option(decorated)
    for own in reversed(_OPTIONS):
        decorated = own(decorated)
    return decorated
