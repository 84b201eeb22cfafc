"""Queue numbered commands for one agent, and resend them over new links until they are executed."""

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
"""Placeholder in a command for a text that many commands share."""

_WORTH_SHARING = 4096  # bytes
_HEADER = struct.Struct("!II")  # the same as in `wire`


class CommandOutbox:
    """The commands sent to an agent since its start. ``are_kept``: keep them, as the link may be restored."""

    def __init__(self, are_kept: bool) -> None:
        self._are_kept = are_kept
        self._waiting: deque[tuple[int, Frame]] = deque()
        self._starts: dict[tuple[str, int], int] = {}
        self._last = 0

    def add(self, kind: str, common: str = "", /, **fields: object) -> Frame:
        """Number the next command and return its frame; ``common`` is the text that replaces `COMMON` in it."""
        self._last += 1
        frame = _frame({"kind": kind, "order": self._last, **fields}, common)
        if kind == "start_task":
            self._starts[(str(fields["task"]), int(str(fields["attempt"])))] = self._last
        if self._are_kept:
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

    def waiting(self) -> list[Frame]:
        """Return the frames that the agent may not have received."""
        return [frame for _, frame in self._waiting]

    def silent_attempts(self, obeyed: int, streams: Iterable[Iterable[object]]) -> list[tuple[str, int]]:
        """Return the attempts that the agent has started and holds no more output of.

        An earlier supervisor received their output to the end and acknowledged it.

        Args:
            obeyed: the number of the last command that the agent has executed.
            streams: task and attempt of every output that the agent still holds.
        """
        kept = {tuple(stream) for stream in streams}
        return [about for about, number in self._starts.items() if number <= obeyed and about not in kept]


def _frame(message: dict[str, object], common: str) -> Frame:
    """Return the frame of a message with ``common`` in place of `COMMON`, in pieces that frames share.

    A thousand commands with the addresses of a thousand tasks may be queued at the same time: the text is escaped for
    JSON once and kept in memory once.
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
    """Escape a text for use inside a JSON string."""
    return json.dumps(text)[1:-1].encode("ascii")
