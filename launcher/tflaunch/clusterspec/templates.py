"""The notation of templates in a spec, and the quoting of data in them. Pure.

What the user writes in a spec is a template: ``${VAR}`` is expanded when it is read, ``{task.index}`` when a task
starts, and ``${host:NAME}`` on the task's host. A value from the environment, a file or a list is data: it is quoted
when it enters a text, and each of the later stages takes off the quotes of its own notation.
"""

import re

from tflaunch.clusterspec.values import ROLES
from tflaunch_worker import host_vars

RUN, ATTEMPT, LEADER = "run", "attempt", "chief.host"
CLUSTER, MATRIX = "cluster.", "matrix."
NAMES = ("task.index", "task.role", "task.name", ATTEMPT, RUN, *(CLUSTER + role for role in ROLES), LEADER)
"""All placeholders, without braces, apart from those of a matrix, whose names the user chooses."""

_NAME = rf"(?:{RUN}|{ATTEMPT}|(?:task|cluster|chief|matrix)\.[A-Za-z_][A-Za-z0-9_-]*)"
PLACEHOLDER = re.compile(rf"\{{\{{(?P<literal>{_NAME})\}}\}}|(?<!\$)\{{(?P<name>{_NAME})\}}")
VARIABLE = re.compile(rf"(?P<host>{host_vars.REFERENCE})|\$\$\{{|\$\{{(?P<name>[^}}]*)\}}")
"""``${NAME}``, the literal ``$${``, and what hosts expand: ``${host:NAME}``, or the literal ``$${host:NAME}``."""


def quote(data: str) -> str:
    """Return data for a text in which placeholders are filled in later."""
    return re.sub(host_vars.REFERENCE, r"$\g<0>", _with_braces(data))


def quote_in_spec(data: str) -> str:
    """Return data for a field of a spec in which ``${VAR}`` is expanded, too."""
    return _with_braces(data).replace("${", "$${")


def _with_braces(data: str) -> str:
    return re.sub(rf"\{{{_NAME}\}}", r"{\g<0>}", data)  # also within {{run}}, which loses one pair
