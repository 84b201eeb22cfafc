"""How tests wait: for an event or a condition, with one patience that no healthy machine needs."""

import os
import select
import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

_LOAD = min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), 2.5)
PATIENCE = int(os.environ.get("TFLAUNCH_TEST_PATIENCE", 600 * _LOAD))
"""Seconds until a test gives up: it fails for a fault, never because the machine is busy.

More on a machine that was busier than its cores when the tests began; less than pytest's own timeout. Less where a
planted bug is to be found, which often shows by what never happens.
"""
_PAUSE = 0.02  # seconds between looks

Found = TypeVar("Found")


def wait_until(
    condition: Callable[[], Found | None],
    running: subprocess.Popen[Any] | None = None,
    otherwise: str | Callable[[], object] = "it did not happen",
) -> Found:
    """Wait for a condition that no event reports, and return its value.

    Args:
        condition: returns something true when it holds.
        running: a command that must not end before.
        otherwise: what the failure says, or what returns it.
    """
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert running is None or running.poll() is None, running.communicate()
        assert time.monotonic() < end, otherwise() if callable(otherwise) else otherwise
        time.sleep(_PAUSE)
    return found


def wait_gone(pid: int) -> None:
    """Wait until a process, of any parent, has exited."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], PATIENCE)[0], f"process {pid} lives on"
    finally:
        os.close(descriptor)


LIMITS = (1, 8, 60)
"""Seconds. The first suffices nearly always; on a busy machine, a program may take longer to start."""


def check_with_limits(check: Callable[[int], None], limits: tuple[int, ...] = LIMITS) -> None:
    """Call ``check`` with the first limit, and while it fails with longer ones.

    Raises:
        AssertionError: it fails with the longest, too.
    """
    for limit in limits[:-1]:
        try:
            check(limit)
        except AssertionError:
            continue
        return
    check(limits[-1])
