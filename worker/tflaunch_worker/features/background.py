"""Run long work in a fork beside tasks, which go first."""

from __future__ import annotations

import os
import signal
from typing import Any, Callable, Collection

from tflaunch_worker import linux, process_state
from tflaunch_worker.event_loop import Loop
from tflaunch_worker.offload import run_in_fork

_YIELDING = 10  # niceness; with 19, a background process starves on a busy host


def run_in_background(loop: Loop, work: Callable[[], Any], done: Callable[[Any], None]) -> Callable[[], None]:
    """Run long ``work`` like `run_in_fork`, at ordinary priority; return what ends it.

    It holds none of the agent's sockets and pipes, whose ends others wait for.
    """

    def detach(writer: int) -> None:
        process_state.close_all_but([writer])
        _take_session(0)

    return run_in_fork(loop, work, done, detach)[1]


def be_keeper(answer: int, kept: Collection[int] = ()) -> None:
    """Let a fork adopt orphans, hold few descriptors, and get TERM if the agent dies."""
    process_state.close_all_but([answer, *kept])
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGCHLD))
    linux.die_with_parent(signal.SIGTERM)
    linux.adopt_orphans()


def yield_to_others() -> None:
    """Give this process, a fork, a low priority, also for disks (see ioprio_set(2))."""
    _take_session(_YIELDING)


def _take_session(niceness: int) -> None:
    """Give this fork its own session, and a niceness that counts across sessions."""
    try:
        if os.getsid(0) != os.getpid():
            os.setsid()  # in a new group of the scheduler, of niceness 0
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
        if niceness:
            with open("/proc/self/autogroup", "w", encoding="ascii") as group:
                group.write(str(niceness))
    except OSError:
        pass  # the kernel has no such groups
