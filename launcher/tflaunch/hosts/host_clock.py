"""A host's clock, compared with ours through the words that go to and fro. Its own time of day is never believed."""

from __future__ import annotations

from collections import deque

_RECENT = 8  # clocks drift apart by some milliseconds an hour: old comparisons must not win


class HostClock:
    """Turns moments of a host's monotonic clock into ours; both are seconds."""

    def __init__(self) -> None:
        self._comparisons: deque[tuple[float, float]] = deque(maxlen=_RECENT)

    def compare(self, sent: float, theirs: float, heard: float) -> None:
        """Learn from a word that we sent at ``sent``, that they answered at ``theirs``, and that we heard at ``heard``.

        It was answered somewhere between: the shorter the way, the better is that known.
        """
        self._comparisons.append((heard - sent, theirs - (sent + heard) / 2))

    def ours(self, theirs: float) -> float:
        """Return what our clock showed when theirs showed ``theirs``."""
        if not self._comparisons:
            return theirs
        return theirs - min(self._comparisons)[1]
