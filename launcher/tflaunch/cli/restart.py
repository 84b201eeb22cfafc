"""`restart`: restart tasks of a live run."""

from __future__ import annotations

import click

from tflaunch.cli.arguments.select import choose, run_and_tasks_argument
from tflaunch.cli.arguments.spec import say


@click.command()
@run_and_tasks_argument
def restart(words: tuple[str, ...]) -> None:
    """Restart TASKs of RUN; without TASK, all tasks that train.

    An evaluator, a sidecar or a worker of a parameter_server job restarts alone; any other task restarts together with
    all tasks that train. They get TERM and the spec's grace to save first. The restart budget is not charged.

    \b
    Example:
      tflaunch restart evaluator
    """
    from tflaunch.client import requests, runs
    from tflaunch.plan import selectors

    directory, wanted = choose(words)
    tasks = selectors.select_tasks(runs.plan_of(directory), wanted) if wanted else []
    bound = requests.request_restart(directory, tasks)
    is_whole = bool(bound) or not tasks
    note = "; they go on from their checkpoints" if is_whole else ""
    say(f"restarting {_restarted(tasks, bound)} of {directory.name}{note}")


def _restarted(tasks: list[str], bound: list[str]) -> str:
    """Describe what a request for these tasks restarts: with one that is ``bound``, all tasks that train."""
    from tflaunch.explain.wording import listed

    if tasks and not bound:
        return listed(tasks)
    return "all tasks that train" + (f" ({listed(bound)} cannot restart alone)" if bound else "")
