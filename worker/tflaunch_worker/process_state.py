"""Set what processes inherit, ours and tasks: signals, descriptors, umask, limits.

Every process of ours calls `set_own_state` when it begins. Whoever starts it may have ignored or blocked signals or
left files open: SIGCHLD ignored, for instance, makes the kernel forget exit codes. (`boot`, which is sent to hosts
before this module, does the same for itself.) A task gets default signals, and the rest as its host's guard got it.
"""

from __future__ import annotations

import os
import resource
import signal
from typing import Iterable, NamedTuple, Tuple

from tflaunch_worker.signals import CATCHABLE, OF_PYTHON

_CHOSEN = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
"""Signals that `nohup`, `&` and a shell without job control have ignored for a reason that holds for us, too."""


class TaskSettings(NamedTuple):
    """Settings that a task gets from this host where the agent has changed its own."""

    umask: int
    max_files: Tuple[int, int]  # soft and hard limit
    niceness: int

    def apply(self) -> None:
        """Give them to this process, a fork; raise `OSError` if this user may not."""
        os.umask(self.umask)
        os.setpriority(os.PRIO_PROCESS, 0, self.niceness)
        resource.setrlimit(resource.RLIMIT_NOFILE, self.max_files)


def set_own_state(kept: Iterable[int] | None = None) -> None:
    """Set the signals, umask and descriptors that each new process of ours needs.

    A umask that denies files to their own owner, with which nothing works, is not passed on to the tasks either.

    Args:
        kept: the descriptors from 3 on that stay open; None for all, in a process that ends with its parent's command.
    """
    if not os.path.isabs(os.path.expanduser("~")):
        os.environ["HOME"] = "/"  # a user without an entry in the user database; Docker sets this
    for number in CATCHABLE - OF_PYTHON - _CHOSEN:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(os.umask(0o077) & 0o077)
    if kept is not None:
        close_all_but(kept)


def reset_signals() -> None:
    """Reset signals in a fork that becomes a task: a shell's ``&`` ignores SIGINT."""
    for number in CATCHABLE:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def close_all_but(kept: Iterable[int]) -> None:
    """Close all other descriptors, which would keep files, pipes, connections open."""
    known = {0, 1, 2, *kept}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in known:
            try:
                os.close(descriptor)
            except OSError:
                pass  # it was that of the list itself


def raise_file_limit() -> tuple[int, int]:
    """Raise the limit of open files to its maximum; return the old (soft, hard)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard
