"""`check`: find mistakes in specs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tflaunch.cli.arguments.spec import (
    CommandAfterDashes,
    json_option,
    read_file,
    set_option,
    source_name,
    specs_argument,
)
from tflaunch.errors import EXIT_USAGE, Problem, SpecError

if TYPE_CHECKING:
    from tflaunch.clusterspec.model import Spec


@click.command(cls=CommandAfterDashes)
@specs_argument
@set_option
@json_option
def check(specs: tuple[Path, ...], command: tuple[str, ...], settings: tuple[str, ...], as_json: bool) -> int:
    """Find mistakes in each SPEC without touching a host: exit 0 when all can be run, 2 when one cannot.

    A SPEC `-` is read from standard input.

    \b
    Example:
      tflaunch check cluster.json
      tflaunch check cluster_specs/*.json
    """
    if not specs:
        raise click.UsageError("Missing argument 'SPEC': the path of a cluster spec.")
    checked = [_checked(spec, command, settings) for spec in specs]
    is_ok = all(each.is_ok for each in checked)
    if as_json:
        shown = {"ok": is_ok, "problems": [problem for each in checked for problem in each.problems_as_json()]}
        if len(checked) > 1:
            shown["specs"] = [each.as_json() for each in checked]
        click.echo(json.dumps(shown, indent=2))
    else:
        for each in checked:
            click.echo("\n".join(each.lines()))
    return 0 if is_ok else EXIT_USAGE


class _Checked(NamedTuple):
    """The result for one spec. ``source``: the file that has the problems, the spec's or one of defaults."""

    spec: str
    source: str
    is_ok: bool
    problems: Sequence[Problem]

    def problems_as_json(self) -> list[dict[str, str]]:
        return [problem._asdict() for problem in self.problems]

    def as_json(self) -> dict[str, Any]:
        return {"spec": self.spec, "ok": self.is_ok, "problems": self.problems_as_json()}

    def lines(self) -> list[str]:
        lines = [f"{self.source}: {problem.severity}: {problem.sentence()}" for problem in self.problems]
        return [*lines, f"{self.spec}: ok"] if self.is_ok else lines


def _checked(spec: Path, command: Sequence[str], settings: Sequence[str]) -> _Checked:
    name = source_name(spec)
    from tflaunch.discovery import prepare

    try:
        loaded, problems = prepare.read_spec(read_file(spec), settings, command=command, is_offline=True)
    except SpecError as error:
        return _Checked(name, error.source, False, error.problems)
    return _Checked(name, name, True, [*problems, *_no_way_out(loaded)])


def _no_way_out(spec: Spec) -> list[Problem]:
    """Warn of a private network on this machine that tasks could not leave; other hosts are not asked."""
    if spec.network != "private":
        return []
    from tflaunch.core import port_fence
    from tflaunch.discovery import local_machine
    from tflaunch.plan import placement
    from tflaunch_worker.agent.network import pasta

    (host,) = placement.hosts_with_tasks(spec)
    reason = pasta.why_missing() if local_machine.is_this_machine(host) else ""
    if not reason:
        return []
    return [Problem.warning("network", port_fence.no_way_out_of(host, reason), port_fence.WAY_OUT)]
