"""Engines, which list hosts that a spec does not name and run commands on them.

Each engine is a class, in the ``discover`` of a `Feature`, also of another package; the name there precedes the colon
in ``"discover": "NAME:REST"``.
"""

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from tflaunch.feature import features, load
from tflaunch.plan.model import TaskPlan


class NotFoundError(Exception):
    """Error for missing hosts or a missing engine, with a hint on the remedy."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Found(NamedTuple):
    """Discovered hosts.

    ``lines`` has one host each, as `values.read_host_slots` reads them: ``h1``, ``h1:2222``, ``h1 slots=2``. ``handle``
    is what the engine needs to reach them later, even from another process.
    """

    lines: Sequence[str]
    handle: str = ""


class Engine(abc.ABC):
    """Finds hosts. By default they are reached over SSH; an engine may override this."""

    inherits = False
    """Whether tasks there have this machine's environment and directories."""
    holds = False
    """Whether a command's processes end with it, so that this process must be kept running for the agent."""

    @abc.abstractmethod
    def find(self, where: str, directory: Path) -> Found:
        """Return the hosts that currently exist.

        Args:
            where: the part of the spec's value after the engine's name and the colon.
            directory: the directory of the spec's file.

        Raises:
            NotFoundError: there are none.
        """

    def words(self, host: str, handle: str) -> Sequence[str] | None:
        """Return the argv prefix for ``/bin/sh -c LINE`` on a host; None for SSH.

        The command must pass stdin and stdout through unchanged, in both directions at once.
        """
        return None

    def variables(self, tasks: Sequence[TaskPlan]) -> Mapping[str, Mapping[str, str]]:
        """Return the variables in which tasks on its hosts look for their rank, by task."""
        return {}

    def is_over(self, handle: str) -> bool:
        """Whether nothing started on these hosts can still be running. May block."""
        return False


def find_engine(name: str) -> Engine:
    """Return the engine with this name, imported, or raise `NotFoundError`."""
    engines = {name: place for feature in features().values() for name, place in feature.discover.items()}
    if name in engines:
        try:
            return cast("Engine", load(engines[name])())
        except (ImportError, AttributeError) as error:
            raise NotFoundError(f"engine {name!r} cannot be imported: {error}", f"mend {engines[name]}") from None
    known = f"use one of {', '.join(sorted(engines))}, or " if engines else ""
    raise NotFoundError(f"there is no engine {name!r}", f"{known}install the package that has it")
