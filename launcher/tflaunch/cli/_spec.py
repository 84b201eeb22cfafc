"""Steps shared by several verbs: read a spec, lint it, make its plan."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tflaunch.errors import Problem, SpecError

if TYPE_CHECKING:
    from tflaunch.clusterspec.load import SpecFile
    from tflaunch.clusterspec.model import Spec
    from tflaunch.plan.model import Plan

STDIN = Path("-")

spec_argument = click.argument("spec", type=click.Path(readable=False, path_type=Path))
specs_argument = click.argument(  # click cannot parse a second variadic argument
    "specs", nargs=-1, metavar="SPEC... [-- COMMAND...]", type=click.Path(readable=False, path_type=Path)
)
command_argument = click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
set_option = click.option("--set", "settings", multiple=True, metavar="PATH=VALUE", help="Change a field of the spec.")
name_option = click.option("--name", metavar="NAME", help="Name the run; default: the spec's name.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class CommandAfterDashes(click.Command):
    """A command that accepts a COMMAND after `--`, and only there (see `command_argument`)."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse what precedes `--`; what follows is the COMMAND, unparsed."""
        end = args.index("--") if "--" in args else len(args)
        try:
            left = super().parse_args(context, args[:end])
        except click.NoSuchOption as error:
            message = f"{error.format_message()} Options of your own program go after `--`."
            raise click.UsageError(message, context) from None
        if context.params.get("command") and not context.resilient_parsing:
            words = shlex.join(context.params["command"])
            raise click.UsageError(f"{words!r} is not expected here; a COMMAND goes after `--`: -- {words}", context)
        context.params["command"] = tuple(args[end + 1 :])
        return left


def source_name(path: Path) -> str:
    """Return the name of a spec for messages: `-` is standard input."""
    return "<stdin>" if path == STDIN else str(path)


def read_file(path: Path) -> SpecFile:
    """Return a spec's unparsed text, read from standard input for `-`.

    Raises:
        SpecError: it cannot be read.
    """
    from tflaunch.clusterspec import load

    return load.read_spec_file(path) if path != STDIN else load.read_spec_stream(sys.stdin.buffer, source_name(path))


def read_spec(
    spec_file: Path | SpecFile,
    settings: Sequence[str] = (),
    name: str | None = None,
    command: Sequence[str] = (),
    is_offline: bool = False,
    giver: str = "",
) -> tuple[Spec, list[Problem]]:
    """Return a spec without errors, and its warnings.

    Offline, hosts of `discover` are only assumed. Hosts of the engine ``giver`` are not looked up, because it
    provides them later.

    Raises:
        SpecError: the spec has errors; lists all of them, and the warnings.
    """
    from tflaunch.clusterspec import load

    if isinstance(spec_file, Path):
        spec_file = read_file(spec_file)
    source = spec_file.source
    spec = load.load_spec(spec_file, settings, name, command, os.environ)
    if spec.pool == giver:
        spec = spec.model_copy(update={"pool": None})
    if spec.discover or spec.pool is not None:
        from tflaunch.discovery import resolve

        directory = spec_file.directory.absolute()
        spec = resolve.assumed(source, spec) if is_offline else resolve.with_hosts(source, spec, directory)
    return spec, linted(source, spec)


def linted(source: str, spec: Spec) -> list[Problem]:
    """Return the warnings about a spec that comes from ``source``.

    Raises:
        SpecError: the spec has errors; lists all of them, and the warnings.
    """
    from tflaunch.plan import lint

    problems = [_with_origin(spec, problem) for problem in lint.check_spec(spec)]
    if any(problem.severity == "error" for problem in problems):
        raise SpecError(source, problems)
    return problems


def _with_origin(spec: Spec, problem: Problem) -> Problem:
    """Add the name of the defaults file to a problem with a value from there."""
    for place, file in spec.origins.items():
        if problem.where and (problem.where == place or problem.where.startswith((f"{place}.", f"{place}["))):
            return problem._replace(message=f"{problem.message} (from {file})")
    return problem


def make_plan(source: str, directory: Path, spec: Spec, is_detached: bool = False) -> Plan:
    """Return the plan of a spec that comes from ``source``; its paths are relative to ``directory``.

    The tasks of a detached run outlive its supervisor by the usual lease, even on this machine, so that the run
    can be resumed.

    Raises:
        SpecError: the spec does not fit the hosts that it names.
    """
    from tflaunch.discovery import local_machine
    from tflaunch.plan import model as planning
    from tflaunch.plan import planner

    if is_detached and spec.timeouts.lease is None:
        timeouts = spec.timeouts.model_copy(update={"lease": planning.DEFAULT_LEASE})
        spec = spec.model_copy(update={"timeouts": timeouts})
    hosts = [address.host for addresses in spec.cluster.values() for address in addresses]
    hosts += [sidecar.host for sidecar in spec.sidecars.values()]
    plan = planner.make_plan(spec, directory.absolute(), local_machine.describe_machine(hosts))
    problems = planning.problems(plan)
    if problems:
        raise SpecError(source, problems)
    return plan


def seconds_in(text: str) -> float | None:
    """Parse a command line's duration, such as ``90``, ``90s`` or ``10m``, to seconds; None if invalid."""
    from tflaunch.clusterspec.values import parse_duration

    return parse_duration(float(text) if text.replace(".", "", 1).isdigit() else text)


def say(message: str) -> None:
    """Print a message of tflaunch to stderr."""
    for line in message.splitlines():
        click.echo(f"tflaunch: {line}", err=True)


def warn(source: object, problems: Sequence[Problem]) -> None:
    """Print warnings about a spec to stderr."""
    source = source_name(source) if isinstance(source, Path) else source
    for problem in problems:
        click.echo(f"tflaunch: {source}: warning: {problem.sentence()}", err=True)
