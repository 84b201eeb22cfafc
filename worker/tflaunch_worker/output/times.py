"""Record when a task wrote its output, so that a log can be read by time.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import bisect

INTERVAL = 0.05
"""Seconds; output written within one interval gets the same time."""

MOST = 4096
"""Maximum number of records per attempt.

Beyond it every second one is removed, so that old times get coarser.
"""


class Times:
    """Times at which bytes were read.

    A record is (offset, seconds of the monotonic clock), valid up to the next one.
    """

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._seconds: list[float] = []

    def note(self, offset: int, now: float) -> None:
        """Record that output from ``offset`` on is read at ``now``."""
        if self._seconds and now - self._seconds[-1] < INTERVAL:
            return
        if len(self._offsets) >= MOST:
            del self._offsets[1::2], self._seconds[1::2]
        self._offsets.append(offset)
        self._seconds.append(now)

    def between(self, start: int, end: int) -> list[tuple[int, float]]:
        """Return the records for the bytes from ``start`` to ``end``; the first one is for ``start`` itself."""
        first = max(bisect.bisect_right(self._offsets, start) - 1, 0)
        last = bisect.bisect_left(self._offsets, end)
        return [(max(self._offsets[number], start), self._seconds[number]) for number in range(first, last)]

    def release(self, offset: int) -> None:
        """Discard records that apply only to bytes before ``offset``."""
        first = max(bisect.bisect_right(self._offsets, offset) - 1, 0)
        del self._offsets[:first], self._seconds[:first]
