"""Track which of an agent's events were received, and which of those are in the journal."""

from __future__ import annotations

from collections import deque

from tflaunch.core.events import Event


class EventCursor:
    """Event numbers of one agent: ``seen`` is the last received, ``recorded`` the last in the journal."""

    def __init__(self) -> None:
        self.seen = 0
        self.recorded = 0
        self._unrecorded: deque[tuple[Event, int]] = deque()

    def is_new(self, number: int) -> bool:
        """Return whether this event number is new; after a lost link, unacknowledged events are sent again."""
        return number > self.seen

    def note(self, event: Event, number: int) -> None:
        """Count a received event."""
        self.seen = number
        self._unrecorded.append((event, number))

    def recall(self) -> None:
        """Count an event that an earlier supervisor received and recorded."""
        self.seen += 1
        self.recorded = self.seen

    def record(self, event: Event) -> bool:
        """Note that an event is in the journal; return whether it is this agent's, which may discard it."""
        if not self._unrecorded or self._unrecorded[0][0] is not event:
            return False
        _, self.recorded = self._unrecorded.popleft()
        return True
