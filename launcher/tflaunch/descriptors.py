"""How many files this process may have open, and how many a run needs."""

from __future__ import annotations

import resource

from tflaunch.errors import EXIT_PREFLIGHT, TflaunchError
from tflaunch.explain.wording import counted

_OF_TASK = 2  # its log, and the index of when it was written
_OF_HOST = 1  # its link
_OTHERS = 100


def raise_limit() -> None:
    """Allow this process as many as it may have; agents were started before, and hand on the user's own limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def needed(hosts: int, tasks: int) -> int:
    """Return how many a supervisor may have open at the same time."""
    return _OF_HOST * hosts + _OF_TASK * tasks + _OTHERS


def require(hosts: int, tasks: int) -> None:
    """See that a run of so many hosts and tasks can have the files that it needs.

    Raises:
        TflaunchError: it cannot.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and needed(hosts, tasks) > most:
        message = (
            f"{counted(tasks, 'task')} on {counted(hosts, 'host')} need {needed(hosts, tasks)} open files, "
            f"and this process may have {most}; raise the hard limit (`ulimit -Hn`, LimitNOFILE, limits.conf)"
        )
        raise TflaunchError(message, EXIT_PREFLIGHT)
