"""How tasks of some plans start, other than by executing their commands."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol

from tflaunch.plan.model import Plan, TaskPlan

REFUSED = "no: "
"""Prefix of a task's ``preload``, followed by the reason, if its command is executed all the same."""


class SessionPart(Protocol):
    """Part of a session of pytest; it begins when a test first needs a home."""

    def environ(self) -> Mapping[str, str]:
        """Return variables for the tests that have a home."""

    def fields_for(self, item: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return further fields for the spec of a marked test, a `pytest.Item`."""

    def end(self) -> None:
        """The session has ended."""


class TaskStarter:
    """Has the commands of tasks executed; the base of what features do instead. Pure."""

    def prospect(self, plan: Plan, process: TaskPlan) -> str | None:
        """Return the modules imported for a process, `REFUSED` and the reason, or None."""
        return None

    def order(self, plan: Plan, process: TaskPlan, *, is_first: bool) -> Mapping[str, object]:
        """Return the fields of the order to start, beside the command."""
        return {}

    def describe_function(self, name: str, functions: Sequence[FunctionType], data: bytes) -> Mapping[str, object]:
        """Describe a function that tasks call, for their hosts.

        ``functions`` are those that are pickled by value, and ``data`` is the pickle.
        """
        return {}

    def join_tests(self, directory: Path) -> SessionPart | None:
        """Return a part of a session of pytest, given a new directory, or None."""
        return None

    def recipe(self, plan: Plan, host: str) -> str | None:
        """Return the recipe of an earlier run's process to start a host's agent, or None."""
        return None
