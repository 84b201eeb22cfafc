"""A host's clock, compared with ours through the words that go to and fro. Its own time of day is never believed."""

from __future__ import annotations

from collections import deque

_RECENT = 16  # clocks drift apart by some milliseconds a minute: old comparisons must not win


class HostClock:
    """Turns moments of a host's monotonic clock into ours; both are seconds."""

    def __init__(self) -> None:
        self._comparisons: deque[tuple[float, float]] = deque(maxlen=_RECENT)

    def compare(self, sent: float, theirs: float, heard: float) -> None:
        """Learn from a word that we sent at ``sent``, that they answered at ``theirs``, and that we heard at ``heard``.

        They are ahead of us by less than they seem to be while the word was on its way there, and by more than
        they seem to be while the answer was on its way here.
        """
        self._comparisons.append((theirs - sent, theirs - heard))

    def ours(self, theirs: float) -> float:
        """Return what our clock showed when theirs showed ``theirs``: the fastest way of each direction counts."""
        if not self._comparisons:
            return theirs
        most = min(most for most, _ in self._comparisons)
        least = max(least for _, least in self._comparisons)
        return theirs - (most + least) / 2
