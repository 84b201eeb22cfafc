"""What several commands do first: read a spec, lint it, make its plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tflaunch.errors import Problem, SpecError

if TYPE_CHECKING:
    from tflaunch.plan import Plan
    from tflaunch.spec import Spec

spec_argument = click.argument("spec", type=click.Path(readable=False, path_type=Path))
set_option = click.option("--set", "settings", multiple=True, metavar="PATH=VALUE", help="Change a field of the spec.")
name_option = click.option("--name", metavar="NAME", help="Name the run; default: the spec's name.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def read_spec(
    path: Path, settings: Sequence[str] = (), name: str | None = None, command: Sequence[str] = ()
) -> tuple[Spec, list[Problem]]:
    """Return a spec without errors, and the warnings about it.

    Raises:
        SpecError: with every error, and the warnings among them.
    """
    from tflaunch import lint, specfile

    spec = specfile.load(path, settings, name, command, os.environ)
    problems = lint.check(spec)
    if any(problem.severity == "error" for problem in problems):
        raise SpecError(str(path), problems)
    return spec, problems


def make_plan(path: Path, spec: Spec) -> Plan:
    """Return the plan of a spec that was read from ``path``.

    Raises:
        SpecError: the spec does not fit the hosts that it names.
    """
    from tflaunch import look_around
    from tflaunch import plan as planning

    hosts = [address.host for addresses in spec.cluster.values() for address in addresses]
    hosts += [sidecar.host for sidecar in spec.sidecars.values()]
    plan = planning.make(spec, path.absolute().parent, look_around.look(hosts))
    problems = planning.problems(plan)
    if problems:
        raise SpecError(str(path), problems)
    return plan


def warn(path: Path, problems: Sequence[Problem]) -> None:
    """Print warnings on stderr."""
    for problem in problems:
        click.echo(f"tflaunch: {path}: warning: {problem.sentence()}", err=True)
