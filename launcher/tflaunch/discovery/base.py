"""Engines: where hosts come from that a spec does not name, and how a command is run on them.

An engine is a class in a module of its own. Those of other packages are entry points of the group `tflaunch.discovery`,
by the word that stands before the colon in ``"discover": "WORD:REST"``.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, cast

GROUP = "tflaunch.discovery"
"""The group of entry points."""


class NotFound(Exception):
    """Why there are no hosts, or no engine, and what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Found(NamedTuple):
    """Hosts.

    ``lines`` has one host each: ``h1``, ``h1:2222`` or ``h1 slots=2`` for two tasks. ``handle`` is what the engine
    needs to know to reach them later, also from another process.
    """

    lines: Sequence[str]
    handle: str = ""


class Engine(abc.ABC):
    """Finds hosts. One that only does this leaves the rest as it is: its hosts are reached over SSH."""

    inherits = False
    """Tasks have the environment and the directories of this machine there."""
    holds = False
    """What a command has started there ends with it: one is left running for the agent."""

    @abc.abstractmethod
    def find(self, where: str, directory: Path) -> Found:
        """Return the hosts that there are now.

        Args:
            where: what the spec says behind the engine's name and a colon.
            directory: that of the spec's file.

        Raises:
            NotFound: there are none.
        """

    def words(self, host: str, handle: str) -> Sequence[str] | None:
        """Return what stands before ``/bin/sh -c LINE`` to run a line on a host; None to use SSH.

        Input and output of that command must be those of the line, to the byte, in both directions and at once.
        """
        return None

    def is_over(self, handle: str) -> bool:
        """Whether nothing that was started on these hosts can live any more. May wait."""
        return False


_BUILT_IN = {
    "dns": ("dns", "Dns"),
    "file": ("listed", "File"),
    "exec": ("listed", "Exec"),
    "slurm": ("slurm", "Slurm"),
}


def named(name: str) -> Engine:
    """Return the engine of a name.

    Raises:
        NotFound: there is none, or it cannot be imported.
    """
    if name in _BUILT_IN:
        module, kind = _BUILT_IN[name]
        return cast("Engine", getattr(import_module(f"tflaunch.discovery.{module}"), kind)())
    from importlib.metadata import entry_points  # takes longer to import than the rest of us

    others = {found.name: found for found in entry_points(group=GROUP)}
    if name not in others:
        known = ", ".join(sorted([*_BUILT_IN, *others]))
        raise NotFound(f"there is no engine {name!r}", f"use one of {known}, or install the package that has it")
    try:
        return cast("Engine", others[name].load()())
    except (ImportError, AttributeError) as error:
        raise NotFound(f"engine {name!r} cannot be imported: {error}", f"mend {others[name].value}") from None


def split(text: str) -> tuple[str, str]:
    """Return the engine's name and the rest of ``NAME:REST``."""
    name, _, rest = text.partition(":")
    return name, rest
