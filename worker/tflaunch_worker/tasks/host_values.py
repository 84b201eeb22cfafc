"""Values that only the host knows: ``~``, ``${host:NAME}`` and parts of it, in what a plan says about a task.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

_REFERENCE = re.compile(r"\$\{host:([A-Za-z_][A-Za-z0-9_]*)(?:/([1-9][0-9]{0,4})|\[([0-9]{1,4}):([0-9]{1,4})\])?\}")


class UnknownValue(Exception):
    """A name that this host does not have: one sentence."""


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Return the text with every ``${host:NAME}`` replaced by this host's variable of that name.

    ``${host:NAME/4}`` is a fourth of a number, rounded down, and at least 1: a share of something.
    ``${host:NAME[2:4]}`` are the entries 2 and 3, counted from 0, of a list with commas.

    Raises:
        UnknownValue: a variable is not set on this host, is no number to be shared, or is too short a list.
    """

    def value(match: re.Match[str]) -> str:
        if match.group(1) not in environ:
            raise UnknownValue(f"variable {match.group(1)!r} is not set on this host")
        known, parts = environ[match.group(1)], match.group(2)
        if match.group(3) is not None:
            return _entries(match.group(1), known, int(match.group(3)), int(match.group(4)))
        if parts is None:
            return known
        if not known.isdecimal():
            raise UnknownValue(f"variable {match.group(1)!r} is no number on this host")
        return str(max(1, int(known) // int(parts)))

    return _REFERENCE.sub(value, text) if "${host:" in text else text


def _entries(name: str, known: str, first: int, end: int) -> str:
    entries = [entry.strip() for entry in known.split(",") if entry.strip()]
    if len(entries) < end:
        raise UnknownValue(f"variable {name!r} has {len(entries)} entries on this host, and {end} are wanted")
    return ",".join(entries[first:end])


def expand_path(text: str, environ: Mapping[str, str]) -> str:
    """Return a path with ``~/`` at its start and every ``${host:NAME}`` replaced.

    Raises:
        UnknownValue: a variable is not set on this host.
    """
    path = expand(text, environ)
    return os.path.expanduser(path) if path == "~" or path.startswith("~/") else path


def bare_environment() -> dict[str, str]:
    """Return what a task inherits where no user's shell was before it: who it is, and nothing of a login."""
    home = os.path.expanduser("~")
    names = ("USER", "LOGNAME", "SHELL")
    return {"HOME": home, **{name: os.environ[name] for name in names if name in os.environ}}
