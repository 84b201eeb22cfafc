"""The options that `up` and `run` share, and those that features add to them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tflaunch.cli.arguments.spec import add_options, fold_option, name_option, quiet_option, verbose_option
from tflaunch.feature import Option, engines, features, load

if TYPE_CHECKING:
    from tflaunch.plan.model import Plan

_OPTIONS = (
    name_option,
    click.option("--log-dir", type=click.Path(path_type=Path), metavar="DIR", help="Write task logs to DIR."),
    click.option(
        "--preflight/--no-preflight", default=True, help="Check before the start that the hosts can reach each other."
    ),
    click.option("-d", "--detach", is_flag=True, help="Run in the background; return when its tasks are running."),
    verbose_option,
    quiet_option,
    fold_option,
)


class LaunchOptions(NamedTuple):
    """The values of the shared options; ``extras`` and ``settings`` are of features."""

    name: str | None = None
    log_dir: Path | None = None
    preflight: bool = True
    detach: bool = False
    verbose: bool = False
    quiet: bool = False
    fold: bool | None = None
    extras: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}

    @property
    def outlives_terminal(self) -> bool:
        """Whether the run goes on without its terminal: another process may begin it."""
        return self.detach or any(feature_options()[name].start for name in self.extras)


class Launching(NamedTuple):
    """A run that is being started.

    ``engine``: the value of ``--on``; ``plan``: None before the spec is read; ``spec``: what the user wrote, and
    ``suffix`` its format, as the suffix of a file name.
    """

    options: LaunchOptions
    engine: str | None = None
    plan: Plan | None = None
    suffix: str = ""
    spec: bytes = b""


def flag_of(name: str) -> str:
    """Return the flag of an option, given the name of its value."""
    return "--" + name.replace("_", "-")


@functools.cache
def feature_options() -> Mapping[str, Option]:
    """Return the options of features by the names of their values."""
    return {name: option for feature in features().values() for name, option in feature.options.items()}


def check_extras(launching: Launching) -> None:
    """Check the given options of features.

    Raises:
        click.UsageError: one of them does not go with how the run is started.
        TflaunchError: it cannot be used.
    """
    for name, value in {**launching.options.settings, **launching.options.extras}.items():
        option = feature_options()[name]
        if option.engine and not _runs_on(launching, option.engine):
            raise click.UsageError(f"{flag_of(name)} has no effect here; add --on {option.engine}")
        if option.check:
            load(option.check)(value, launching)


def _runs_on(launching: Launching, engine: str) -> bool:
    """Whether a run is for this engine, or may be, as long as its spec is not read."""
    field = engines()[engine].field
    chosen = bool(field) and (launching.plan is None or launching.plan.host_maker == field)
    return launching.engine == engine or (launching.engine is None and chosen)


def settings_of(launching: Launching) -> tuple[str, ...]:
    """Return the settings of the spec that engine and options of features imply."""
    given = tuple(f"{feature_options()[name].setting}={value}" for name, value in launching.options.settings.items())
    return given if launching.engine is None else (*engines()[launching.engine].settings, *given)


def _on_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    summary = f"{what} {', or '.join(engine.summary for engine in engines().values())}."
    return click.option("--on", "engine", type=click.Choice([*engines()]), hidden=not engines(), help=summary)


engine_option = _on_option("Run it")


def _with_settings(
    summary: str, is_wanted: Callable[[Option], bool], command: Callable[..., Any]
) -> Callable[..., Any]:
    """Add `--on` and its options to a command that gets ``engine`` and ``settings``."""
    settable = {name: option for name, option in feature_options().items() if option.engine and option.setting}
    extra = {name: option for name, option in settable.items() if is_wanted(option)}

    @functools.wraps(command)
    def with_settings(engine: str | None, settings: tuple[str, ...] = (), **values: Any) -> Any:
        given = {name: value for name in extra if (value := values.pop(name)) is not None}
        launching = Launching(LaunchOptions(settings=given), engine)
        check_extras(launching)
        return command(engine=engine, settings=settings + settings_of(launching), **values)

    return add_options(with_settings, [_on_option(summary), *itertools.starmap(_click_option, extra.items())])


engine_settings = functools.partial(_with_settings, "Ask what is known before it runs", lambda _: True)
engine_of_runs = functools.partial(_with_settings, "Only what runs", lambda option: option.is_for_ls)


def _click_option(name: str, option: Option) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    if not option.metavar:
        return click.option(flag_of(name), is_flag=True, flag_value=option.value, help=option.summary)

    def read(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        return load(option.read)(value) if option.read and value is not None else value

    return click.option(
        flag_of(name), metavar=option.metavar, multiple=option.is_repeated, callback=read, help=option.summary
    )


def launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of core and features to a command, which gets ``options``."""
    extra = feature_options()

    @functools.wraps(command)
    def with_wishes(**values: Any) -> Any:
        given = {name: values.pop(name) for name in extra}
        given = {name: value for name, value in given.items() if not (value is None or value is False or value == ())}
        settings = {name: value for name, value in given.items() if feature_options()[name].setting}
        extras = {name: value for name, value in given.items() if name not in settings}
        shared = {name: values.pop(name) for name in LaunchOptions._fields if name not in {"extras", "settings"}}
        return command(options=LaunchOptions(**shared, extras=extras, settings=settings), **values)

    return add_options(with_wishes, [*_OPTIONS, *itertools.starmap(_click_option, extra.items())])
