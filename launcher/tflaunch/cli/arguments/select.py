"""RUN and TASK arguments: what they select, and their shell completion."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from tflaunch.client import runs
from tflaunch.errors import TflaunchError
from tflaunch.plan import selectors
from tflaunch.store import run_dir

_TASK_OR_HOST = r"chief|worker|ps|evaluator|.*:.*|host=.*"
"""Matches what cannot be a run: a run's name has no colon."""
_MISSPELT_TASK = r"(chief|worker|ps|evaluator)s?[-_./]?\d*"
"""Matches what is meant as a task, if no run has that name."""


def complete_runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the runs whose names start with ``incomplete``, newest first."""
    try:
        names = [path.name for path in run_dir.newest_first()]
    except TflaunchError:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_runs_and_tasks(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return runs for the first argument, and the tasks of the selected run."""
    words = list(context.params.get(parameter.name or "") or ())
    found = complete_runs(context, parameter, incomplete) if not words else []
    try:
        plan = runs.plan_of(choose(words)[0])
    except TflaunchError:
        return found
    tasks = [process.task for process in plan.processes()]
    tasks += list(dict.fromkeys(task.role for task in plan.tasks))
    tasks += [f"host={host.host}" for host in plan.hosts]
    return found + [CompletionItem(task) for task in tasks if task.startswith(incomplete)]


run_argument = click.argument("run", required=False, shell_complete=complete_runs)
run_and_tasks_argument = click.argument(
    "words", nargs=-1, metavar="[RUN] [TASK]...", shell_complete=complete_runs_and_tasks
)


def choose(words: Sequence[str], default: Callable[[], Path] = runs.find_run) -> tuple[Path, list[str]]:
    """Return the directory of the selected run, and the arguments that select tasks.

    The first argument is a task if it looks like one, or if the default run has a task of that name. ``default``
    returns the directory of that run; without it, it is the live one, or else the newest.

    Raises:
        TflaunchError: the run does not exist.
    """
    if not words or re.fullmatch(_TASK_OR_HOST, words[0]):
        return default(), list(words)
    try:
        return runs.find_run(words[0]), list(words[1:])
    except TflaunchError as error:
        try:
            directory = default()
        except TflaunchError:
            raise error from None
        if re.fullmatch(_MISSPELT_TASK, words[0]) or selectors.names_task(runs.plan_of(directory), words[0]):
            return directory, list(words)
        raise


def choose_tasks(words: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the selected run's directory, and its selected tasks, [] without any."""
    directory, wanted = choose(words)
    return directory, selectors.select_tasks(runs.plan_of(directory), wanted) if wanted else []
