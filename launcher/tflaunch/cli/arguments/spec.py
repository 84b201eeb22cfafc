"""Arguments, options and messages that several verbs share."""

import datetime as dt
import functools
import json
import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from tflaunch import records
from tflaunch.cli.arguments.unknown_options import answer_option
from tflaunch.clusterspec import spec_file
from tflaunch.clusterspec.values import parse_duration
from tflaunch.errors import EXIT_USAGE, Problem, TflaunchError
from tflaunch_worker.readable import duration_words

STDIN = Path("-")
_SPECS = tuple(Path("cluster" + suffix) for suffix in spec_file.SUFFIXES)


def specs_here() -> list[Path]:
    """Return the specs here with a name that commands look for."""
    return [path for path in _SPECS if path.exists()]


def usual_spec() -> Path:
    """Return the spec here, for commands that name none.

    Raises:
        click.MissingParameter: there is none, or more than one.
    """
    found = specs_here()
    if len(found) == 1:
        return found[0]
    message = f"{' and '.join(map(str, found))} are here; name one of them."
    if not found:
        usual = "cluster.json, .yaml, .yml or .toml"
        message = f"Name the path of a cluster spec, as no {usual} is here; `tflaunch init` writes one."
    raise click.MissingParameter(message, param_hint="'SPEC'", param_type="argument")


spec_argument = click.argument(
    "spec",
    required=False,
    type=click.Path(readable=False, path_type=Path),
    callback=lambda _context, _parameter, path: path or usual_spec(),
)
specs_argument = click.argument(  # click cannot parse a second variadic argument
    "specs", nargs=-1, metavar="[SPEC]... [-- COMMAND...]", type=click.Path(readable=False, path_type=Path)
)
file_option = click.option(  # docker compose and kubectl have it before a file, as here is SPEC
    "-f", "--file", is_flag=True, hidden=True, expose_value=False, help="Has no effect."
)
command_argument = click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
set_option = click.option("--set", "settings", multiple=True, metavar="PATH=VALUE", help="Change a field of the spec.")
name_option = click.option("--name", metavar="NAME", help="Name the run; default: the spec's name.")
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Show TensorFlow's start-up messages, too.")
quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="Of tflaunch's messages, show only warnings and failures."
)
fold_option = click.option(
    "--fold/--no-fold",
    default=None,
    help="Show equal lines of several tasks once, with their names; default: only on a terminal.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class WholeNumber(click.IntRange):
    """A whole number from ``min`` on, or up to ``max``, whose errors say so."""

    name = "whole number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or say which ones are valid."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            least = int(self.min or 0)
            end, remedy = ("on", "for example 2") if self.max is None else (f"to {self.max:g}", "one of these")
            self.fail(f"{value!r} is not a whole number from {least} {end}; write {remedy}.", param, ctx)


class Duration(click.ParamType):  # type: ignore[type-arg]  # not generic in earlier versions
    """A duration in seconds: ``90``, ``90s`` or ``10m``; errors show an example."""

    name = "duration"

    def __init__(self, example: str, least: float = 0.0, most: float = math.inf) -> None:
        self._example = example
        self._least = least
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds, or say how a duration is written."""
        seconds = parse_duration(value)
        if seconds is None or not self._least <= seconds <= self._most:
            end = "" if self._most == math.inf else f" of at most {duration_words(self._most)}"
            self.fail(f"{value!r} is not a valid duration{end}; write for example {self._example}", param, ctx)
        return seconds


POSITIVE = 0.001
"""The least of a `Duration` that must not be 0."""
_PROGRAM = re.compile(r"python[\d.]*|.*\.(py|sh)|\.{0,2}/.+")


def require_program(command: Sequence[str], context: click.Context | None = None) -> None:
    """Raise `click.UsageError` if a command begins with options, not with a program."""
    if command and command[0].startswith("-"):
        words = shlex.join(command)
        place = next((at for at, word in enumerate(command) if _PROGRAM.fullmatch(word)), 0)
        if place:
            own, rest = shlex.join(command[:place]), shlex.join(command[place:])
            raise click.UsageError(f"{own!r} goes before `--`: {own} -- {rest}", context)
        raise click.UsageError(f"After `--` comes a whole COMMAND, such as: -- python train.py {words}", context)


class CommandAfterDashes(click.Command):
    """A command that accepts a COMMAND after `--` only (see `command_argument`)."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse what precedes `--`; what follows is the COMMAND, unparsed."""
        end = args.index("--") if "--" in args else len(args)
        try:
            left = super().parse_args(context, args[:end])
        except click.NoSuchOption as error:
            answer = answer_option(error)
            if not isinstance(answer, click.NoSuchOption):
                raise answer from None
            own = f"Options of your own program go after `--`, behind its name: -- PROGRAM {error.option_name} …"
            raise click.UsageError(f"{answer.format_message()} {own}", context) from None
        if context.params.get("command") and not context.resilient_parsing:
            words = shlex.join(context.params["command"])
            if Path(words).suffix in spec_file.SUFFIXES:
                raise click.UsageError(f"{words} is a second spec; {self.name} takes one: give each its own", context)
            raise click.UsageError(f"{words!r} is not expected here; a COMMAND goes after `--`: -- {words}", context)
        context.params["command"] = tuple(args[end + 1 :])
        if not context.resilient_parsing:
            require_program(context.params["command"], context)
        return left


def add_options(command: Callable[..., Any], options: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Add options to a command, which lists them in this order."""
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


def source_name(path: Path) -> str:
    """Return the name of a spec for messages: `-` is standard input."""
    return "<stdin>" if path == STDIN else str(path)


def read_file(path: Path) -> spec_file.SpecFile:
    """Return a spec's unparsed text, for `-` from standard input, or raise SpecError."""
    if path == STDIN:
        return spec_file.read_spec_stream(sys.stdin.buffer, source_name(path))
    return spec_file.read_spec_file(path)


def moment_in(text: str, option: str) -> float:
    """Parse an option's value, a duration ago or a date, to seconds since the epoch.

    Raises:
        TflaunchError: it is neither.
    """
    seconds = parse_duration(text)
    if seconds is not None:
        return time.time() - seconds
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except ValueError:
        usual = "90s, 10m or 2h for that long ago, or 2026-01-31T12:00:00"
        raise TflaunchError(f"{option} {text!r} is not a valid time; use {usual}", EXIT_USAGE) from None


def print_json(value: object) -> None:
    """Print a record, or anything made of records, as JSON."""
    click.echo(json.dumps(records.as_json(value), indent=2))


def say(message: str) -> None:
    """Print a message of tflaunch to stderr."""
    for line in message.splitlines():
        click.echo(f"tflaunch: {line}", err=True)


def warn(source: object, problems: Sequence[Problem]) -> None:
    """Print warnings about a spec to stderr."""
    source = source_name(source) if isinstance(source, Path) else source
    for problem in problems:
        click.echo(f"tflaunch: {source}: warning: {problem.sentence()}", err=True)
