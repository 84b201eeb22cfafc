"""Time limits that a job under test must reach, or must not reach, whatever else the machine does."""

from __future__ import annotations

from collections.abc import Callable

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
