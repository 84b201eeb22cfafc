"""Expand values of the host (``~``, ``${host:NAME}``) in command and environment."""

from __future__ import annotations

import os
import re
from typing import Mapping

_STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OF_A_TASK = frozenset(
    "TFLAUNCH_" + name
    for name in (
        *("RUN", "STRATEGY", "TASK", "ATTEMPT", "TASK_DIR", "PROGRESS"),
        *("SET", "LEGACY_KERAS", "PRELOAD", "EXEC", "LOG"),
    )
)
_GRPC_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # that gRPC obeys
REFERENCE = r"\$?\$\{host:([A-Za-z_][A-Za-z0-9_]*)(?:/([1-9][0-9]{0,4})|\[([0-9]{1,4}):([0-9]{1,4})\])?\}"
"""A reference to a value of the host; with a second ``$``, its own text."""


class UnknownValueError(Exception):
    """Raised for a value that this host does not have; the message is one sentence."""


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Replace each ``${host:NAME}`` by this host's variable of that name.

    ``${host:NAME/4}`` is a quarter of a number, rounded down, but at least 1, for example a share of a resource.
    ``${host:NAME[2:4]}`` selects entries 2 and 3, counted from 0, of a comma-separated list. ``$${host:NAME}`` is the
    literal ``${host:NAME}``.

    Raises:
        UnknownValueError: a variable is not set on this host, is no number that can be divided, or is too short a list.
    """

    def value(match: re.Match[str]) -> str:
        if match.group(0).startswith("$$"):
            return match.group(0)[1:]
        if match.group(1) not in environ:
            raise UnknownValueError(f"variable {match.group(1)!r} is not set on this host")
        known, parts = environ[match.group(1)], match.group(2)
        if match.group(3) is not None:
            return _entries(match.group(1), known, int(match.group(3)), int(match.group(4)))
        if parts is None:
            return known
        if not known.isdecimal():
            raise UnknownValueError(f"variable {match.group(1)!r} is not a number on this host")
        return str(max(1, int(known) // int(parts)))

    return re.sub(REFERENCE, value, text) if "${host:" in text else text


def has_proxy(environ: Mapping[str, str]) -> bool:
    """Return whether gRPC may use a proxy, from which an empty grpc_proxy keeps it.

    JAX warns of an empty one.
    """
    return any(environ.get(name) for name in _GRPC_PROXIES)


def _entries(name: str, known: str, first: int, end: int) -> str:
    entries = [entry.strip() for entry in known.split(",") if entry.strip()]
    if len(entries) < end:
        raise UnknownValueError(f"variable {name!r} has {len(entries)} entries on this host, and {end} are wanted")
    return ",".join(entries[first:end])


def expand_path(text: str, environ: Mapping[str, str]) -> str:
    """Return a path with a leading ``~/`` and every ``${host:NAME}`` expanded.

    Raises `UnknownValueError` as `expand` does.
    """
    path = expand(text, environ)
    return os.path.expanduser(path) if path == "~" or path.startswith("~/") else path


def bare_environment(python: str) -> dict[str, str]:
    """Return a task's environment without the agent's: user, home, locale and PATH.

    ``python`` is the agent's interpreter: PATH finds the `python` and `python3` beside it.
    """
    names = ("USER", "LOGNAME", "SHELL")
    known = {name: os.environ[name] for name in names if name in os.environ}
    path = with_python_first(_STANDARD_PATH, python)
    return {"HOME": os.path.expanduser("~"), **known, "PATH": path, "LANG": "C.UTF-8"}


def with_python_first(path: str, python: str) -> str:
    """Put an interpreter's `python` and `python3` first in a PATH, if they are not."""
    directory = os.path.dirname(python)
    for name in ("python", "python3"):
        if _find(name, directory) and _find(name, path) != directory:
            return f"{directory}:{path}"
    return path


def _find(name: str, path: str) -> str:
    """Return the first directory of a PATH that contains a program, or "" for none."""
    places = [place for place in path.split(":") if place]
    return next((place for place in places if os.access(os.path.join(place, name), os.X_OK)), "")


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the agent's environment without tflaunch's variables for tasks."""
    return {name: value for name, value in environ.items() if name not in _OF_A_TASK}
