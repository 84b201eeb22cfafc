"""The commands that were sent to an agent, which are sent again over the next link."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tflaunch_worker import wire

Frame = tuple[bytes, ...]
"""The pieces of a frame in order. Similar frames may share some of them."""


class CommandOutbox:
    """The commands sent to an agent since its start.

    ``last_bodies`` maps a kind to the last body of that kind. ``are_kept``: keep them, as the link may be restored.
    Before the first link, they are kept in any case.
    """

    def __init__(self, are_kept: bool) -> None:
        self._are_kept = are_kept
        self._has_link = False
        self._waiting: deque[tuple[int, Frame]] = deque()
        self.starts: dict[tuple[str, int], int] = {}
        """The task and number of each attempt that the agent was told to start, and that command's number."""
        self._last = 0
        self.last_bodies: dict[str, bytes] = {}

    def add(self, kind: str, body: bytes = b"", /, **fields: object) -> Frame:
        """Number the next command and return its frame; agents can share a body."""
        self._last += 1
        head = wire.encode_head({"kind": kind, "order": self._last, **fields}, len(body))
        frame = (head, body) if body else (head,)
        if body:
            self.last_bodies[kind] = body
        if kind == "start_task":
            self.starts[(str(fields["task"]), int(str(fields["attempt"])))] = self._last
        if self._are_kept or not self._has_link:
            self._waiting.append((self._last, frame))
        return frame

    @property
    def last(self) -> int:
        """The number of the last command, 0 before the first."""
        return self._last

    def forget(self, obeyed: int | None = None) -> None:
        """Discard the commands up to number ``obeyed``, or all of them without a number."""
        while self._waiting and (obeyed is None or self._waiting[0][0] <= obeyed):
            self._waiting.popleft()

    def begin_link(self) -> list[Frame]:
        """Return the frames that the agent may lack, to be sent over a new link."""
        self._has_link = True
        frames = [frame for _, frame in self._waiting]
        if not self._are_kept:
            self._waiting.clear()
        return frames

    def silent_attempts(self, obeyed: int, streams: Iterable[Iterable[object]]) -> list[tuple[str, int]]:
        """Return the attempts that the agent has started and holds no more output of.

        An earlier supervisor received their output to the end and acknowledged it.

        Args:
            obeyed: the number of the last command that the agent has executed.
            streams: task and attempt of every output that the agent still holds.
        """
        kept = {tuple(stream) for stream in streams}
        return [about for about, number in self.starts.items() if number <= obeyed and about not in kept]
