"""`plan`, `env`, `check`, `schema`: look at a spec without running it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tflaunch.cli.loading import (
    CommandAfterDashes,
    command_argument,
    json_option,
    make_plan,
    name_option,
    read_spec,
    set_option,
    source_name,
    spec_argument,
    specs_argument,
    warn,
)
from tflaunch.errors import EXIT_USAGE, Problem, SpecError, TflaunchError

if TYPE_CHECKING:
    from tflaunch.plan.model import Plan, TaskPlan


@click.command(cls=CommandAfterDashes, short_help="Show what `up` would do.")
@spec_argument
@command_argument
@set_option
@name_option
@json_option
def plan(spec: Path, command: tuple[str, ...], settings: tuple[str, ...], name: str | None, as_json: bool) -> None:
    """Show every process that `up` would start: host, address, command, environment.

    `auto` stands for a value that is chosen at the start, such as a port.

    \b
    Example:
      tflaunch plan cluster.json --json
    """
    loaded, warnings = read_spec(spec, settings, name, command)
    made = make_plan(source_name(spec), spec.parent, loaded)
    warn(spec, warnings)
    from tflaunch.plan import placeholders, serialize

    made = placeholders.shown(made)
    origins = loaded.origins
    if as_json:
        click.echo(json.dumps({**serialize.as_json(made), "origins": dict(origins)}, indent=2))
    else:
        click.echo(_plan_as_text(made, origins))


def _plan_as_text(plan: Plan, origins: Mapping[str, str]) -> str:
    from tflaunch.plan import preloading

    lines = [f"{plan.name}: {plan.strategy}, done when {_done_rule(plan)}"]
    lines += [f"  default  {place} from {file}" for place, file in origins.items()]
    for process in plan.processes():
        lines.append(f"\n{process.task} on {process.host}, address {process.address or 'none'}")
        lines.append(f"  command  {shlex.join(process.argv)}")
        lines.append(f"  workdir  {process.workdir}")
        for name, value in sorted(process.env.items()):
            why = f"   ({process.reasons[name]})" if name in process.reasons else ""
            lines.append(f"  env      {name}={value}{why}")
        lines.append(f"  unset    {' '.join(process.unset)}")
        if (prospect := preloading.prospect(plan, process)) is not None:
            lines.append(f"  preload  {prospect}")
    return "\n".join(lines)


def _done_rule(plan: Plan) -> str:
    from tflaunch.core import policy

    names = policy.deciders(plan)
    return f"{names[0]} ends with 0" if len(names) == 1 else f"all {len(names)} tasks end with 0"


@click.command(short_help="Print shell exports to run one task by hand.")
@spec_argument
@click.argument("task")
@set_option
def env(spec: Path, task: str, settings: tuple[str, ...]) -> None:
    """Print shell commands after which TASK's command can be run by hand, in a debugger for instance.

    The spec should give every task a port: one that is chosen at the start cannot be known here.

    \b
    Example:
      eval "$(tflaunch env cluster.json worker:1)" && python train.py
    """
    loaded, warnings = read_spec(spec, settings)
    made = make_plan(source_name(spec), spec.parent, loaded)
    warn(spec, warnings)
    names = [process.task for process in made.processes()]
    if task not in names:
        raise TflaunchError(
            f"{source_name(spec)}: there is no task {task!r}; the tasks are {', '.join(names)}", EXIT_USAGE
        )
    from tflaunch.plan import model as planning
    from tflaunch.plan import placeholders, tensorboard

    made = planning.resolve(made, {tensorboard.NAME: tensorboard.USUAL_PORT})
    unknown = [process.task for process in made.tasks if process.address and process.address.port is None]
    if unknown:
        hint = 'give it in the spec, for example "localhost:12345"'
        warn(spec, [Problem("warning", unknown[0], "its port is chosen only at the start", hint)])
    from tflaunch.plan import serialize

    made = placeholders.shown(made, serialize.run_by_hand(made))
    click.echo(serialize.shell_exports(made, _settled(made, made.find(task))))


def _settled(plan: Plan, task: TaskPlan) -> TaskPlan:
    """Decide for a task of this machine what its agent would: whether tf_keras is there for it."""
    from tflaunch_worker.looking import interpreter

    if not plan.is_local(task.host) or task.env.get(interpreter.CHOICE) != interpreter.LEFT_TO_THE_HOST:
        return task
    is_legacy, _ = interpreter.legacy_keras(list(task.argv), {**os.environ, **task.env})
    return task._replace(env={**task.env, "TF_USE_LEGACY_KERAS": "1" if is_legacy else "0"})


@click.command(cls=CommandAfterDashes, short_help="Find mistakes in specs.")
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
    """What was found in one spec. ``source`` is its file, or where the problems are: a file of defaults."""

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
    try:
        _, problems = read_spec(spec, settings, command=command, is_offline=True)
    except SpecError as error:
        return _Checked(name, error.source, False, error.problems)
    return _Checked(name, name, True, problems)


@click.command(short_help="Print the JSON Schema of a spec.")
def schema() -> None:
    """Print the JSON Schema of a cluster spec, for editors and validators.

    \b
    Example:
      tflaunch schema > cluster.schema.json
    """
    from tflaunch.spec.spec_form import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
