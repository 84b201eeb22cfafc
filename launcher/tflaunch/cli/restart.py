"""`restart`: restart tasks of a live run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tflaunch.cli._control import ask_supervisor, shortened_list
from tflaunch.cli._select import choose, plan_of, run_and_tasks_argument
from tflaunch.cli._spec import say

if TYPE_CHECKING:
    from tflaunch.plan.model import Plan


@click.command(short_help="Restart tasks of a live run.")
@run_and_tasks_argument
def restart(words: tuple[str, ...]) -> None:
    """Restart TASKs of RUN; without TASK, all tasks that train.

    An evaluator, a sidecar and a worker of a parameter_server job start alone; with any other task all that train
    do. They get TERM and the spec's grace to save first. The restart budget is not charged.

    \b
    Example:
      tflaunch restart evaluator
    """
    from tflaunch.plan import selectors

    directory, wanted = choose(words)
    plan = plan_of(directory)
    tasks = selectors.select_tasks(plan, wanted) if wanted else []
    ask_supervisor(directory, "restart", tasks=tasks)
    say(f"restarting {_restarted(plan, tasks)} of {directory.name}")


def _restarted(plan: Plan, tasks: list[str]) -> str:
    """Describe what a request for these tasks restarts: with a task of the gang, all tasks that train."""
    from tflaunch.core import policy

    bound = [task for task in tasks if not policy.restarts_alone(plan, plan.find(task))]
    if tasks and not bound:
        return shortened_list(tasks)
    return "all tasks that train" + (f" ({shortened_list(bound)} cannot restart alone)" if bound else "")
