"""Check the limit of open files, given what a run needs."""

from __future__ import annotations

import resource

from tflaunch.errors import EXIT_PREFLIGHT, TflaunchError
from tflaunch.explain.wording import counted

_OF_TASK = 2  # its log, and the index of the log's times
_OF_HOST = 1  # its link
_OTHERS = 100


def needed(hosts: int, tasks: int) -> int:
    """Return the maximum number of files that a supervisor has open at once."""
    return _OF_HOST * hosts + _OF_TASK * tasks + _OTHERS


def require(hosts: int, tasks: int) -> None:
    """Check that the limit suffices for a run with this many hosts and tasks.

    Raises:
        TflaunchError: the hard limit is too low.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and needed(hosts, tasks) > most:
        message = (
            f"{counted(tasks, 'task')} on {counted(hosts, 'host')} need {needed(hosts, tasks)} open files, "
            f"and this process may have {most}; raise the hard limit (`ulimit -Hn`, LimitNOFILE, limits.conf)"
        )
        raise TflaunchError(message, EXIT_PREFLIGHT)
