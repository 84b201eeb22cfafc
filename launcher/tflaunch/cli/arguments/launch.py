"""The options that `up` and `run` share, and those that rooms add to them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tflaunch.cli.arguments.spec import name_option, quiet_option, verbose_option
from tflaunch.rooms import engines, load, rooms

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
    verbose_option,
    quiet_option,
    click.option(
        "--preload", is_flag=True, help=f"Import {PRELOADED} once per host; fork the tasks from that process."
    ),
)


class LaunchOptions(NamedTuple):
    """The values of the shared options; those of rooms that were given are in ``extras`` and ``settings``."""

    name: str | None
    log_dir: Path | None
    preflight: bool
    detach: bool
    verbose: bool
    quiet: bool
    preload: bool
    extras: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}

    @property
    def begins_later(self) -> bool:
        """Whether another process begins the run."""
        return any(room_options()[name].is_for_later for name in self.extras)

    @property
    def outlives_terminal(self) -> bool:
        """Whether the run goes on without the terminal that has started it."""
        return self.detach or self.begins_later


class Launching(NamedTuple):
    """A run that is being started.

    Args:
        options: how.
        engine: the value of ``--on``.
        plan: the plan, if the spec is read already; None before that.
        suffix: the format of ``spec``, as the suffix of a file name.
        spec: what the user wrote.
    """

    options: LaunchOptions
    engine: str | None = None
    plan: Plan | None = None
    suffix: str = ""
    spec: bytes = b""


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
        is_for_later: whether another process then begins the run, so that it goes on without this terminal.
        setting: the field of the spec that it sets; its value is then no extra of the run.
    """

    flag: str
    option: Callable[[Callable[..., Any]], Callable[..., Any]]
    check: Callable[[Any, Launching], None] = _accept
    is_for_run: bool = True
    goes_with_resume: bool = False
    is_for_later: bool = False
    setting: str = ""

    @property
    def name(self) -> str:
        """The name of its value."""
        return self.flag.removeprefix("--").replace("-", "_")


@functools.cache
def room_options() -> Mapping[str, RoomOption]:
    """Return the options of rooms by the names of their values."""
    return {option.name: option for room in rooms().values() if room.options for option in load(room.options)}


def check_extras(launching: Launching) -> None:
    """Check the given options of rooms.

    Raises:
        click.UsageError: one of them does not go with how the run is started.
        TflaunchError: it cannot be used.
    """
    for name, value in {**launching.options.settings, **launching.options.extras}.items():
        room_options()[name].check(value, launching)


def settings_of(launching: Launching) -> tuple[str, ...]:
    """Return the settings of the spec that the engine and the options of rooms mean."""
    given = tuple(f"{room_options()[name].setting}={value}" for name, value in launching.options.settings.items())
    return given if launching.engine is None else (*engines()[launching.engine].settings, *given)


def engine_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--on` to a command, if there are engines."""
    summary = f"Run it {', or '.join(engine.summary for engine in engines().values())}."
    option = click.option("--on", "engine", type=click.Choice([*engines()]), hidden=not engines(), help=summary)
    decorated: Callable[..., Any] = option(command)
    return decorated


def launch_options(command: Callable[..., Any], *, is_run: bool = False) -> Callable[..., Any]:
    """Add the shared options, and those of rooms, to a command, which receives their values as ``options``.

    ``is_run``: leave out what rooms add to `up` alone.
    """
    extra = [option for option in room_options().values() if option.is_for_run or not is_run]

    @functools.wraps(command)
    def with_wishes(**values: Any) -> Any:
        given = {option.name: values.pop(option.name) for option in extra}
        given = {name: value for name, value in given.items() if not (value is None or value is False or value == ())}
        settings = {name: value for name, value in given.items() if room_options()[name].setting}
        extras = {name: value for name, value in given.items() if name not in settings}
        shared = {name: values.pop(name) for name in LaunchOptions._fields if name not in {"extras", "settings"}}
        return command(options=LaunchOptions(**shared, extras=extras, settings=settings), **values)

    decorated: Callable[..., Any] = with_wishes
    for option in reversed(extra):
        decorated = option.option(decorated)
    for own in reversed(_OPTIONS):
        decorated = own(decorated)
    return decorated
