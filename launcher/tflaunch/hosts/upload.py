"""Bringing the user's code to one agent: offered by hashes, sent in parts, a few of them ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tflaunch_worker import wire

if TYPE_CHECKING:
    from tflaunch.hosts.code import Code, Part

_AHEAD = 8  # parts under way: few enough that a slow link still carries the heartbeat in time


class Upload:
    """The user's code on its way to one agent."""

    def __init__(self, code: Code, send: Callable[[bytes], None]) -> None:
        """Prepare to send frames with ``send``."""
        self._code = code
        self._send = send
        self._frames: Iterator[bytes] = iter(())
        self._under_way = 0
        self._is_answered = False

    def offer(self) -> None:
        """Tell the agent what there is; also when a new link has replaced a lost one."""
        self._is_answered = False
        self._begin(self._code.offers())

    def begin(self, wanted: Sequence[tuple[str, int]]) -> None:
        """Send what the agent does not have: contents by hash, each from a byte on.

        Only its first answer over a link counts: it may have one more, to what was asked over the lost link.

        Raises:
            OSError: a file cannot be read any more.
        """
        if not self._is_answered:
            self._is_answered = True
            self._begin(_frame(part) for part in self._code.parts([(sha256, offset) for sha256, offset in wanted]))

    def part_taken(self) -> None:
        """The agent has one more part, of the offer or of a file.

        Raises:
            OSError: a file cannot be read any more.
        """
        self._under_way -= 1
        self._send_more()

    def _begin(self, frames: Iterator[bytes]) -> None:
        self._frames = frames
        self._under_way = 0
        self._send_more()

    def _send_more(self) -> None:
        while self._under_way < _AHEAD and (frame := next(self._frames, None)) is not None:
            self._under_way += 1
            self._send(frame)


def _frame(part: Part) -> bytes:
    message = {"kind": "file_part", "sha256": part.sha256, "offset": part.offset, "is_last": part.is_last}
    return wire.encode(message, part.data)
