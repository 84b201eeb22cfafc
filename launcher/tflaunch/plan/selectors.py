"""Select tasks by `worker`, `worker:1`, `worker:0-3` or `host=NAME`. Pure."""

import re
from collections.abc import Sequence

from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.plan.model import Plan, TaskPlan

_SELECTOR = re.compile(r"(?P<role>[A-Za-z][\w.-]*)(?::(?P<first>\d{1,6})(?:-(?P<last>\d{1,6}))?)?", re.ASCII)
_HOST = "host="


def select_tasks(plan: Plan, selectors: Sequence[str]) -> list[str]:
    """Return the selected tasks in the plan's order; all tasks without a selector.

    Raises:
        TflaunchError: a selector matches no task.
    """
    processes = plan.processes()
    chosen: set[str] = set()
    for selector in selectors:
        selected = {process.task for process in processes if _matches(selector, process)}
        if not selected:
            names = ", ".join(dict.fromkeys(process.task for process in processes[:8]))
            more = "" if len(processes) <= 8 else f" and {len(processes) - 8} more"
            message = f"no task is {selector!r}; the tasks are {names}{more} (also: worker, worker:0-3, host=NAME)"
            raise TflaunchError(message, EXIT_USAGE)
        chosen |= selected
    return [process.task for process in processes if not selectors or process.task in chosen]


def names_task(plan: Plan, word: str) -> bool:
    """Whether ``word`` selects a task of the plan."""
    return any(_matches(word, process) for process in plan.processes())


def _matches(selector: str, process: TaskPlan) -> bool:
    if selector.startswith(_HOST):
        return process.host == selector[len(_HOST) :]
    parts = _SELECTOR.fullmatch(selector)
    if selector == process.task:
        return True
    if parts is None or parts["role"] != process.task.partition(":")[0]:
        return False
    if parts["first"] is None:
        return True
    first = int(parts["first"])
    return first <= process.task_index <= int(parts["last"] or first)
