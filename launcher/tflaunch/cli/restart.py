"""`restart`: restart tasks of a live run."""

from __future__ import annotations

import click

from tflaunch.cli.arguments.select import choose, run_and_tasks_argument
from tflaunch.cli.arguments.spec import say
from tflaunch.client import requests, runs
from tflaunch.explain.wording import listed
from tflaunch.plan import selectors


@click.command()
@run_and_tasks_argument
def restart(words: tuple[str, ...]) -> None:
    """Restart TASKs of RUN; without TASK, all tasks that train.

    An evaluator, a sidecar, a worker of a parameter_server job and a task of strategy none restart alone; any other
    task restarts together with all tasks that train. They get the spec's stop_signal and grace to save first.
    The restart budget is not charged.

    \b
    Example:
      tflaunch restart evaluator
    """
    directory, wanted = choose(words)
    tasks = selectors.select_tasks(runs.plan_of(directory), wanted) if wanted else []
    bound = requests.request_restart(directory, tasks)
    if tasks and not bound:
        say(f"restarting {listed(tasks)} of {directory.name}")
    else:
        others = f" ({listed(bound)} cannot restart alone)" if bound else ""
        note = "they go on from the checkpoints that they save, if any"
        say(f"restarting all tasks that train{others} of {directory.name}; {note}")
