"""How the tasks of some plans start in another way than by executing their commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

from tflaunch.errors import Problem
from tflaunch.feature import features, load
from tflaunch.plan.model import Plan, TaskPlan

if TYPE_CHECKING:
    from tflaunch.clusterspec.model import Spec

REFUSED = "no: "
"""Prefix of a task's ``preload``, followed by the reason, if its command is executed all the same."""


class SessionPart(Protocol):
    """Part of a session of pytest; it begins when a test first needs a home."""

    def environ(self) -> Mapping[str, str]:
        """Return variables for the tests that have a home."""

    def fields_for(self, item: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return further fields for the spec of a marked test, a `pytest.Item` that has given some."""

    def end(self) -> None:
        """The session has ended."""


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

    def describe_function(self, name: str, functions: Sequence[FunctionType], data: bytes) -> Mapping[str, object]:
        """Return what hosts are told of a function that tasks call.

        Args:
            name: the function's.
            functions: those that are pickled by value.
            data: the pickle.
        """
        return {}

    def join_tests(self, directory: Path) -> SessionPart | None:
        """Return what takes part in a session of pytest, given a new directory; None for nothing."""
        return None

    def recipe(self, plan: Plan, host: str) -> str | None:
        """Return what tells which process of an earlier run may start the agent on a host; None for no such process."""
        return None


def task_starters() -> list[TaskStarter]:
    """Return what features offer."""
    places = dict.fromkeys(place for feature in features().values() for place in feature.task_starters.values())
    return [load(place)() for place in places]


def find_task_starter(made: Spec | Plan) -> TaskStarter:
    """Return what starts the tasks of a spec or plan."""
    starters = (item for feature in features().values() for item in feature.task_starters.items())
    place = next((place for field, place in starters if getattr(made, field, None)), None)
    starter: TaskStarter = TaskStarter() if place is None else load(place)()
    return starter
