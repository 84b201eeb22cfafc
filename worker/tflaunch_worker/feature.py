"""Features of an agent and their discovery: the agent knows none by name.

A feature is a package in `tflaunch_worker/features`. Its `FEATURE` declares what it adds to an agent. Declarations are
imported by every agent, so they import nothing but this module; what they name is imported when it is used.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import socket
from functools import lru_cache
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from tflaunch_worker.readable import printable

FEATURES = "tflaunch_worker.features"

RAISE_FAULTS = "TFLAUNCH_RAISE_FAULTS"
"""If this variable of the environment is set, as in tests of tflaunch itself, faults of features are raised."""

_LONGEST_REASON = 200  # characters


class Variable(NamedTuple):
    """A variable of a task's environment, unless the task sets or must not have it."""

    value: str
    modules: str  # the folder in the feature whose modules a task with this value can import


class Feature(NamedTuple):
    """What a feature adds to an agent.

    Args:
        service: the place of its class, a `tflaunch_worker.agent.services.Service`, if it has calls or moments.
        calls: the kinds of calls that it serves.
        variables: what the environments of tasks get, by name.
        moments: the methods of `Service` for which it is made; at other moments it takes part if a call came before.
        guards: the place of a function that does what `start_guard` does.
        network: the place of a function that makes a private network: returns descriptors of the namespaces that a task
            joins, in this order, and why tasks do not reach the world from there, or "". It raises an error with the
            reason where the host does not allow it.
    """

    service: str = ""
    calls: tuple[str, ...] = ()
    moments: tuple[str, ...] = ()
    variables: Mapping[str, Variable] = {}
    guards: str = ""
    network: str = ""


def load(place: str) -> Any:
    """Import a place, ``package.module:name``, and return what is there."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


@lru_cache(maxsize=None)
def features() -> Mapping[str, Feature]:
    """Return agents' features by name, without those whose declaration is broken."""
    return find_features(FEATURES, _note_broken)


broken: dict[str, str] = {}
"""The features that `features` has left out, with the reason."""


def _note_broken(name: str, error: Exception) -> None:
    if os.environ.get(RAISE_FAULTS):
        raise error
    broken[name] = describe_error(error)


def start_guard(recipe: str, python: Sequence[str], directory: str, title: str, link: socket.socket) -> int | None:
    """Start guard and agent by an earlier run's process; return a pidfd, or None.

    ``recipe`` is what the plan says of that process, ``python`` the interpreter with its options, ``title`` for people
    who list processes, and ``link`` the socket to the agent's first client, which stays open here. The pidfd is that of
    the guard; there is none without such a process.
    """
    for starter in [feature.guards for feature in features().values() if feature.guards]:
        try:
            guard: int | None = load(starter)(recipe, python, directory, title, link)
        except Exception:
            if os.environ.get(RAISE_FAULTS):
                raise
            continue  # it is started as without the feature
        if guard is not None:
            return guard
    return None


def name_of_raiser(error: BaseException, packages: Mapping[str, str]) -> str:
    """Return the name of the feature that has raised an error, or "".

    ``packages`` has a package of features with ``""``, or the package of one feature with its name.
    """
    trace = error.__traceback__
    while trace is not None:
        known = trace.tb_frame.f_globals
        module = known.get("__name__", "")
        for package, name in packages.items():
            if module == package or module.startswith(package + "."):
                feature, _, inside = module[len(package) + 1 :].partition(".")
                if name or inside or "__path__" in known:  # else several features share the module
                    return name or feature
        trace = trace.tb_next
    return ""


def describe_error(error: BaseException) -> str:
    """Return an error in one line, with the place that has raised it."""
    place, trace = "", error.__traceback__
    while trace is not None:
        place = " ({}, line {})".format(os.path.basename(trace.tb_frame.f_code.co_filename), trace.tb_lineno)
        trace = trace.tb_next
    return printable("{}: {}".format(type(error).__name__, error), _LONGEST_REASON) + place


def find_features(package: str, leave_out: Callable[[str, Exception], None]) -> dict[str, Any]:
    """Return the ``FEATURE`` of each package inside a package, ordered by name.

    ``leave_out`` takes the name and the error of one that cannot be imported.
    """
    found = {}
    modules = pkgutil.iter_modules(importlib.import_module(package).__path__)
    for name in sorted(module.name for module in modules if module.ispkg):
        try:
            found[name] = load(f"{package}.{name}:FEATURE")
        except Exception as error:
            leave_out(name, error)
    return found
