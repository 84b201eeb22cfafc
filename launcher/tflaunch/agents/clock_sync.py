"""Estimate a host's clock offset from round trips, not from its time of day."""

from __future__ import annotations

from collections import deque

from tflaunch.core.events import LONGEST_TIME

_RECENT = 16  # clocks drift by a few milliseconds per minute, so old samples must expire


class HostClock:
    """Converts times of a host's monotonic clock to ours, both in seconds."""

    def __init__(self) -> None:
        self._comparisons: deque[tuple[float, float]] = deque(maxlen=_RECENT)

    def compare(self, sent: float, theirs: float, heard: float) -> None:
        """Add a sample: ``sent`` and ``heard`` by our clock, ``theirs`` by their clock.

        We sent a request at ``sent``, they replied at ``theirs``, and we received the reply at ``heard``. The network
        delay of the request makes their clock look further ahead than it is, that of the reply less far: the two
        differences are an upper and a lower bound of the offset.
        """
        self._comparisons.append((theirs - sent, theirs - heard))

    def ours(self, theirs: float) -> float:
        """Convert ``theirs`` to our clock, by the fastest recent trips."""
        if not self._comparisons:
            return theirs
        most = min(most for most, _ in self._comparisons)
        least = max(least for _, least in self._comparisons)
        moment = theirs - (most + least) / 2
        return max(-LONGEST_TIME, min(moment, LONGEST_TIME))  # the journal must be readable, whatever a host tells
