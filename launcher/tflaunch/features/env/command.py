"""`env`: print shell exports to run one task by hand."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tflaunch.cli.arguments.spec import read_file, set_option, source_name, spec_argument, warn
from tflaunch.errors import EXIT_USAGE, Problem, TflaunchError
from tflaunch.features.env import shell_exports
from tflaunch.plan import attempts, placeholders, tensorboard
from tflaunch.plan.model import Plan, TaskPlan
from tflaunch_worker.inspect import interpreter


@click.command()
@spec_argument
@click.argument("task")
@set_option
def env(spec: Path, task: str, settings: tuple[str, ...]) -> None:
    """Print shell commands after which TASK's command can be run by hand, for example in a debugger.

    The spec should give every task a port: one that is chosen at the start cannot be known here.

    \b
    Example:
      eval "$(tflaunch env cluster.json worker:1)" && python train.py
    """
    from tflaunch.discovery import prepare

    file = read_file(spec)
    loaded, warnings = prepare.read_spec(file, settings)
    made = prepare.make_plan(file.directory, loaded)
    warn(spec, warnings)
    names = [process.task for process in made.processes()]
    if task not in names:
        raise TflaunchError(
            f"{source_name(spec)}: there is no task {task!r}; the tasks are {', '.join(names)}", EXIT_USAGE
        )
    made = attempts.resolve(made, {tensorboard.NAME: tensorboard.USUAL_PORT})
    unknown = [process.task for process in made.tasks if process.address and process.address.port is None]
    if unknown:
        hint = 'give it in the spec, for example "localhost:12345"'
        warn(spec, [Problem("warning", unknown[0], "its port is chosen only at the start", hint)])
    made = placeholders.shown(made, shell_exports.run_by_hand(made))
    click.echo(shell_exports.shell_exports(made, _settled(made, made.find(task))))


def _settled(plan: Plan, task: TaskPlan) -> TaskPlan:
    """Decide for a local task, as its agent would, whether it has tf_keras."""
    if not plan.is_local(task.host) or task.env.get(interpreter.CHOICE) != interpreter.LEFT_TO_THE_HOST:
        return task
    is_legacy, _ = interpreter.legacy_keras(list(task.argv), {**os.environ, **task.env})
    return task._replace(env={**task.env, "TF_USE_LEGACY_KERAS": "1" if is_legacy else "0"})
