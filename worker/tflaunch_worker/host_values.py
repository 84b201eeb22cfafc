"""Values that only the host knows: ``~`` and ``${host:NAME}`` in what a plan says about a task.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

_REFERENCE = re.compile(r"\$\{host:([A-Za-z_][A-Za-z0-9_]*)\}")


class UnknownValue(Exception):
    """A name that this host does not have: one sentence."""


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Return the text with every ``${host:NAME}`` replaced by this host's variable of that name.

    Raises:
        UnknownValue: a variable is not set on this host.
    """

    def value(match: re.Match[str]) -> str:
        if match.group(1) not in environ:
            raise UnknownValue(f"variable {match.group(1)!r} is not set on this host")
        return environ[match.group(1)]

    return _REFERENCE.sub(value, text) if "${host:" in text else text


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
