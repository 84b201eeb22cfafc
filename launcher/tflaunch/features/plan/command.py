"""`plan`: show what `up` would do."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tflaunch.cli.arguments import spec as arguments
from tflaunch.core import policy
from tflaunch.discovery import prepare
from tflaunch.feature import Output, find_task_starter
from tflaunch.plan import placeholders, serialize
from tflaunch.plan.model import Plan, TaskPlan

# The modules to preload, and fields that come from files of defaults.
PLAN = Output(Plan, {TaskPlan: {"preload": str | None}, Plan: {"origins": Mapping[str, str]}})


@click.command(cls=arguments.CommandAfterDashes)
@arguments.spec_argument
@arguments.file_option
@arguments.command_argument
@arguments.set_option
@arguments.name_option
@arguments.json_option
def plan(spec: Path, command: tuple[str, ...], settings: tuple[str, ...], name: str | None, as_json: bool) -> None:
    """Show every process that `up` would start: host, address, command, environment.

    `auto` marks a value that is chosen at the start, such as a port.

    \b
    Example:
      tflaunch plan cluster.json --json
    """
    file = arguments.read_file(spec)
    loaded, warnings = prepare.read_spec(file, settings, name, command)
    made = prepare.make_plan(file.directory, loaded)
    arguments.warn(spec, warnings)
    made = placeholders.shown(made, environ=os.environ)
    origins = loaded.origins
    if as_json:
        arguments.print_json(_plan_as_json(made, origins))
    else:
        click.echo(_plan_as_text(made, origins))


def _plan_as_json(plan: Plan, origins: Mapping[str, str]) -> dict[str, Any]:
    data = serialize.as_json(plan)
    shown = [*data["tasks"], *data["sidecars"], *(task for variant in data["variants"] for task in variant["tasks"])]
    processes = [*plan.processes(), *(task for variant in plan.variants for task in variant.tasks)]
    for fields, process in zip(shown, processes, strict=True):
        fields["preload"] = find_task_starter(plan).prospect(plan, process)
    return {**data, "origins": dict(origins)}


def _plan_as_text(plan: Plan, origins: Mapping[str, str]) -> str:
    ends = policy.success_tasks(plan)
    done = f"{ends[0]} ends with 0" if len(ends) == 1 else f"all {len(ends)} tasks end with 0"
    lines = [f"{plan.name}: {plan.strategy}, done when {done}"]
    lines += [f"  default  {place} from {file}" for place, file in origins.items()]
    lines += [f"  spare    {host}" for host in plan.spares]
    for process in plan.processes():
        lines.append(f"\n{process.task} on {process.host}, address {process.address or 'none'}")
        lines.append(f"  command  {shlex.join(process.argv)}")
        lines.append(f"  workdir  {process.workdir}")
        for name, value in sorted(process.env.items()):
            why = f"   ({process.reasons[name]})" if name in process.reasons else ""
            lines.append(f"  env      {name}={value}{why}")
        for name, source in sorted(plan.secrets.items()):
            lines.append(f"  secret   {name} from {source.env or source.file}")
        lines.append(f"  unset    {' '.join(process.unset)}")
        if (prospect := find_task_starter(plan).prospect(plan, process)) is not None:
            lines.append(f"  preload  {prospect}")
    return "\n".join(lines)
