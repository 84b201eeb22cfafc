"""Orders to one agent: numbered, and sent again over every new link until the agent has obeyed them."""

from __future__ import annotations

import functools
import json
import os
import struct
from collections import deque
from collections.abc import Iterable

from tflaunch.agents.frames import Frame
from tflaunch_worker import wire

COMMON = os.urandom(16).hex()
"""Stands in an order for a text that many orders have in common."""

_WORTH_SHARING = 4096  # bytes
_HEADER = struct.Struct("!II")  # as `wire` has it


class CommandOutbox:
    """What an agent was asked for since it was started. ``are_kept``: its link may be restored."""

    def __init__(self, are_kept: bool) -> None:
        self._are_kept = are_kept
        self._waiting: deque[tuple[int, Frame]] = deque()
        self._starts: dict[tuple[str, int], int] = {}
        self._last = 0

    def add(self, kind: str, common: str = "", /, **fields: object) -> Frame:
        """Return the frame of the next order; ``common`` is the text for which `COMMON` stands in it."""
        self._last += 1
        frame = _frame({"kind": kind, "order": self._last, **fields}, common)
        if kind == "start_task":
            self._starts[(str(fields["task"]), int(str(fields["attempt"])))] = self._last
        if self._are_kept:
            self._waiting.append((self._last, frame))
        return frame

    @property
    def last(self) -> int:
        """The number of the last order, 0 before the first."""
        return self._last

    def forget(self, obeyed: int | None = None) -> None:
        """Forget the orders up to number ``obeyed``, without one all that wait."""
        while self._waiting and (obeyed is None or self._waiting[0][0] <= obeyed):
            self._waiting.popleft()

    def waiting(self) -> list[Frame]:
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


def _frame(message: dict[str, object], common: str) -> Frame:
    """Return the frame of a message with ``common`` in the place of `COMMON`, as bytes that other frames have too.

    A thousand orders with the addresses of a thousand tasks may wait for agents at the same time: the text is made fit
    for JSON once, and stands in memory once.
    """
    frame = wire.encode(message)
    before, _, behind = frame.partition(COMMON.encode("ascii"))
    if len(before) == len(frame):
        return (frame,)
    text = _as_written(common)
    size = len(before) - _HEADER.size + len(text) + len(behind)
    if size > wire.MAX_MESSAGE:
        raise wire.WireError(f"a frame of {size} bytes is too large")
    pieces = _HEADER.pack(size, 0) + before[_HEADER.size :], text, behind
    return pieces if len(text) > _WORTH_SHARING else (b"".join(pieces),)


@functools.lru_cache(maxsize=4)  # the clusters of two attempts, each with and without the evaluator
def _as_written(text: str) -> bytes:
    """How a text is written within a JSON string."""
    return json.dumps(text)[1:-1].encode("ascii")
