"""End unwanted processes: kill, wait for death, let their helpers clean up.

A helper that cleans up removes what its program has left in the machine's memory (/dev/shm): by hand it outlives the
program for a moment. It ends by itself when the last process of the program, which holds the other end of its pipe, is
dead. Killed in the same instant, it would leave the segments until the machine starts again.
"""

import os
import re
import select
import signal
import time
from typing import Collection, Iterable

from tflaunch_worker import linux, procfs

CLEAN_UP = 2.0
"""Seconds for helpers that clean up to end by themselves."""

YOUNG = 0.3
"""Seconds in which a fork usually executes another program."""

_CLEANERS = re.compile(r"\bresource_tracker import main\b|\btorch_shm_manager\b")  # of multiprocessing, loky; PyTorch
_LOOK_AGAIN = 0.01  # seconds


def is_cleaner(pid: int) -> bool:
    """Return whether a process is a helper that cleans up after its program."""
    return bool(_CLEANERS.search(procfs.command_of(pid)))


def may_be_cleaner(pid: int) -> bool:
    """Return whether a process is such a helper, or may become one after fork or exec."""
    age = procfs.age_of(pid)
    is_young_fork = age is not None and age < YOUNG and procfs.is_fork(pid)
    return is_young_fork or procfs.is_between_programs(pid) or is_cleaner(pid)


def wait_for_death(pids: Iterable[int], patience: float) -> None:
    """Wait until these processes are dead; without pidfds, or any, only for a moment.

    ``patience``: time limit in seconds for all of them together.
    """
    until = time.monotonic() + patience
    waited = False
    for pid in pids:
        pidfd = linux.open_pidfd(pid)
        if pidfd is not None:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll(None if until == float("inf") else max(until - time.monotonic(), 0) * 1000)
            os.close(pidfd)
            waited = True
    if not waited:
        time.sleep(max(min(_LOOK_AGAIN, patience), 0))


def kill_below(spared: Collection[int] = (), patience: float = float("inf")) -> None:
    """Kill this process's descendants, until only those that it may not kill are left.

    It must adopt their orphans. Each look is followed by the death of all that it has seen: a look after each death
    would be quadratic. It gives up after ``patience`` seconds: a process that waits for a dead disk does not die.
    """
    until = time.monotonic() + patience
    may_clean_up = True
    while True:
        has_children = reap()
        left = [pid for pid in procfs.descendants(os.getpid()) if pid not in spared and procfs.place_of(pid)]
        due = [pid for pid in left if not (may_clean_up and may_be_cleaner(pid))]
        killed = [pid for pid in due if linux.kill(pid, None, signal.SIGKILL)]
        if (not left and (spared or not has_children)) or time.monotonic() >= until:
            return
        if not killed and any(map(procfs.place_of, due)):
            return  # we may not kill any of them: they have changed their user
        if left and not due:
            may_clean_up = False
            wait_for_death(left, CLEAN_UP)
        else:  # none is left if one has just died, or the kernel's list has hidden it
            wait_for_death(killed, until - time.monotonic())


def reap() -> bool:
    """Reap all children that are dead; return whether any are left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
