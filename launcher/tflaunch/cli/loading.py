"""What several commands do first: read a spec, lint it, make its plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tflaunch.errors import EXIT_USAGE, Problem, SpecError, TflaunchError

if TYPE_CHECKING:
    from tflaunch.plan import Plan
    from tflaunch.spec import Spec

spec_argument = click.argument("spec", type=click.Path(readable=False, path_type=Path))
set_option = click.option("--set", "settings", multiple=True, metavar="PATH=VALUE", help="Change a field of the spec.")
name_option = click.option("--name", metavar="NAME", help="Name the run; default: the spec's name.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def read_spec(
    path: Path,
    settings: Sequence[str] = (),
    name: str | None = None,
    command: Sequence[str] = (),
    is_offline: bool = False,
    giver: str = "",
) -> tuple[Spec, list[Problem]]:
    """Return a spec without errors, and the warnings about it.

    Offline, hosts of `discover` are only assumed; those of the engine ``giver`` are not looked for, as it gives them
    later.

    Raises:
        SpecError: with every error, and the warnings among them.
    """
    from tflaunch.spec import specfile

    spec = specfile.load(path, settings, name, command, os.environ)
    if spec.pool == giver:
        spec = spec._replace(pool=None)
    if spec.discover or spec.pool is not None:
        from tflaunch.plan import discovery

        directory = path.absolute().parent
        spec = discovery.assumed(str(path), spec) if is_offline else discovery.with_hosts(str(path), spec, directory)
    return spec, linted(str(path), spec)


def linted(source: str, spec: Spec) -> list[Problem]:
    """Return the warnings about a spec that comes from ``source``.

    Raises:
        SpecError: there are errors; with every one, and the warnings among them.
    """
    from tflaunch.plan import lint

    problems = lint.check(spec)
    if any(problem.severity == "error" for problem in problems):
        raise SpecError(source, problems)
    return problems


def make_plan(source: str, directory: Path, spec: Spec, is_detached: bool = False) -> Plan:
    """Return the plan of a spec that comes from ``source``; its paths are relative to ``directory``.

    The tasks of a detached run outlive its supervisor by the usual lease, on this machine, too: somebody may
    come to resume it.

    Raises:
        SpecError: the spec does not fit the hosts that it names.
    """
    from tflaunch import plan as planning
    from tflaunch.plan import planner
    from tflaunch.spec import look_around

    if is_detached and spec.timeouts.lease is None:
        spec = spec._replace(timeouts=spec.timeouts._replace(lease=planning.DEFAULT_LEASE))
    hosts = [address.host for addresses in spec.cluster.values() for address in addresses]
    hosts += [sidecar.host for sidecar in spec.sidecars.values()]
    plan = planner.make(spec, directory.absolute(), look_around.look(hosts))
    problems = planning.problems(plan)
    if problems:
        raise SpecError(source, problems)
    return plan


def check_keep(plan: Plan, remedy: str) -> None:
    """Refuse to keep a TensorBoard that there is not.

    Raises:
        TflaunchError: the plan has none.
    """
    from tflaunch.plan import board

    if plan.keep and board.of(plan) is None:
        raise TflaunchError(f"--keep keeps TensorBoard, and this job has none: {remedy}", EXIT_USAGE)


def seconds_in(text: str) -> float | None:
    """Return the seconds that ``90``, ``90s`` or ``10m`` on the command line means, None when it means none."""
    from tflaunch.spec.kinds import seconds_of

    return seconds_of(float(text) if text.replace(".", "", 1).isdigit() else text)


def say(message: str) -> None:
    """Print a message of tflaunch on stderr."""
    for line in message.splitlines():
        click.echo(f"tflaunch: {line}", err=True)


def warn(source: object, problems: Sequence[Problem]) -> None:
    """Print warnings about a spec on stderr."""
    for problem in problems:
        click.echo(f"tflaunch: {source}: warning: {problem.sentence()}", err=True)
