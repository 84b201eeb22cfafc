"""How the tasks of some plans start in another way than by executing their commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tflaunch.errors import Problem
from tflaunch.feature import features, load
from tflaunch.plan.model import Plan, TaskPlan

if TYPE_CHECKING:
    from tflaunch.clusterspec.model import Spec

REFUSED = "no: "
"""Prefix of a task's ``preload``, followed by the reason, if its command is executed all the same."""


class TaskStarter:
    """Has the commands of tasks executed; the base of what features do instead. Pure."""

    def find_problems(self, spec: Spec) -> Iterator[Problem]:
        """Yield what speaks against it in a spec."""
        yield from ()

    def prospect(self, plan: Plan, process: TaskPlan) -> str | None:
        """Return the modules that are imported for a process, or `REFUSED` and the reason; None if none were wanted."""
        return None

    def order(self, plan: Plan, process: TaskPlan) -> Mapping[str, object]:
        """Return what an agent is told of the start, beside the command."""
        return {}

    def recipe(self, plan: Plan, host: str) -> str | None:
        """Return what tells which process of an earlier run may start the agent on a host; None for no such process."""
        return None


def find_task_starter(made: Spec | Plan) -> TaskStarter:
    """Return what starts the tasks of a spec or plan."""
    starters = (item for feature in features().values() for item in feature.task_starters.items())
    place = next((place for field, place in starters if getattr(made, field, None)), None)
    starter: TaskStarter = TaskStarter() if place is None else load(place)()
    return starter
