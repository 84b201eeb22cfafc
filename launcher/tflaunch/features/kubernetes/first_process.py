"""The first process of a pod: runs until Kubernetes ends the pod; lets tasks save.

Kubernetes sends TERM, or the STOPSIGNAL of the image, to this process alone. Its children are the guards of agents,
which have no other parent; they stop their tasks with the grace of the run. When this process exits, the kernel kills
what is left in the container.

It is passed to Python, 3.8 or later, as text: nothing is installed in the image.
"""

from __future__ import annotations

import os
import signal
import time

_LAST_OUTPUT = 2.0  # seconds for the programs that carry the agents' messages
_OTHERS = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP}
_OTHERS |= {signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGURG, signal.SIGPIPE, signal.SIGXFSZ}
_SIGNALS = signal.valid_signals() - _OTHERS


def main() -> None:
    """Reap children until a signal ends the pod; end them; return when none is left."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    is_ending = False
    while not is_ending or _reap():
        if signal.sigwait(_SIGNALS) != signal.SIGCHLD:  # no limit: the pod lives until it gets a signal
            is_ending = True
            for child in _children():
                os.kill(child, signal.SIGTERM)
        _reap()
    end = time.monotonic() + _LAST_OUTPUT
    while len(_processes()) > 1 and time.monotonic() < end:
        time.sleep(0.05)


def _reap() -> bool:
    """Reap what has exited; return whether children are left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    found = []
    for pid in _processes():
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                parent = file.read().rpartition(")")[2].split()[1]
        except OSError:
            continue  # it has exited
        if int(parent) == os.getpid():
            found.append(pid)
    return found


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
