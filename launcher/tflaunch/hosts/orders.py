"""Orders to one agent: numbered, and sent again over every new link until the agent has obeyed them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tflaunch_worker import wire


class Orders:
    """What an agent was asked for since it was started. ``are_kept``: its link may be restored."""

    def __init__(self, are_kept: bool) -> None:
        self._are_kept = are_kept
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._starts: dict[tuple[str, int], int] = {}
        self._last = 0

    def add(self, kind: str, **fields: object) -> bytes:
        """Return the frame of the next order."""
        self._last += 1
        frame = wire.encode({"kind": kind, "order": self._last, **fields})
        if kind == "start_task":
            self._starts[(str(fields["task"]), int(str(fields["attempt"])))] = self._last
        if self._are_kept:
            self._waiting.append((self._last, frame))
        return frame

    def forget(self, obeyed: int | None = None) -> None:
        """Forget the orders up to number ``obeyed``, without one all that wait."""
        while self._waiting and (obeyed is None or self._waiting[0][0] <= obeyed):
            self._waiting.popleft()

    def waiting(self) -> list[bytes]:
        """Return the frames that the agent may not have got."""
        return [frame for _, frame in self._waiting]

    def silent_attempts(self, obeyed: int, streams: Iterable[Iterable[object]]) -> list[tuple[str, int]]:
        """Return the attempts that the agent has started and has nothing more to say of.

        An earlier supervisor has heard them to their end, and that was acknowledged.

        Args:
            obeyed: the number of the last order that the agent has obeyed.
            streams: task and attempt of all whose output it keeps.
        """
        kept = {tuple(stream) for stream in streams}
        return [about for about, number in self._starts.items() if number <= obeyed and about not in kept]
