"""Which of an agent's events were heard, and which of them are in the journal."""

from __future__ import annotations

from collections import deque

from tflaunch.core.events import Event


class EventCursor:
    """Counts the events of one agent. ``seen`` is the number of the last that came, ``recorded`` of the last kept."""

    def __init__(self) -> None:
        self.seen = 0
        self.recorded = 0
        self._unrecorded: deque[tuple[Event, int]] = deque()

    def is_new(self, number: int) -> bool:
        """Whether an event of this number comes for the first time: after a lost link all are sent again."""
        return number > self.seen

    def note(self, event: Event, number: int) -> None:
        """An event came."""
        self.seen = number
        self._unrecorded.append((event, number))

    def recall(self) -> None:
        """One more event had come to an earlier supervisor, and was recorded."""
        self.seen += 1
        self.recorded = self.seen

    def record(self, event: Event) -> bool:
        """An event is in the journal; return whether it was the agent's, which may forget it now."""
        if not self._unrecorded or self._unrecorded[0][0] is not event:
            return False
        _, self.recorded = self._unrecorded.popleft()
        return True
