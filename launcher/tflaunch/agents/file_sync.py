"""Send the user's code to one agent: offer it by hash, then send the missing parts, a few ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tflaunch_worker import wire

if TYPE_CHECKING:
    from tflaunch.agents.user_code import Code, Part

_AHEAD = 8  # unacknowledged parts: few enough that a slow link still delivers heartbeats in time
_MOST_ANSWERS = 2


class Upload:
    """An upload of the user's code to one agent."""

    def __init__(self, code: Code, send: Callable[[bytes], None]) -> None:
        """Prepare to send frames with ``send``."""
        self._code = code
        self._send = send
        self._frames: Iterator[bytes] = iter(())
        self._under_way = 0
        self._is_answered = False
        self._answers = 0
        self._late = 0  # parts, sent before what is sent now, that the agent may still acknowledge

    @property
    def unacknowledged(self) -> int:
        """How many parts the agent may still acknowledge over this link."""
        return self._under_way + self._late

    def offer(self, late: int = 0) -> None:
        """Offer all files to the agent; repeated over each new link.

        ``late``: how many parts of an earlier upload the agent may still acknowledge over this link.
        """
        self._is_answered = False
        self._answers = 0
        self._begin(self._code.offers(), late)

    def begin(self, wanted: Iterable[object]) -> None:
        """Send what the agent lacks: each [hash, offset] is a content's hash and the byte to continue at.

        Only the first answer over a link counts; a second one may arrive, to the offer sent over the lost link.

        Raises:
            OSError: a file can no longer be read.
            ValueError: the agent asks for a file that was not offered, or asks repeatedly.
        """
        self._answers += 1
        if self._answers > _MOST_ANSWERS:
            raise ValueError("it asks for files again and again")
        if not self._is_answered:
            self._is_answered = True
            parts = self._code.parts(self._checked(wanted))
            self._begin((_frame(part) for part in parts), self.unacknowledged)  # the answer may be to an earlier offer

    def part_taken(self) -> None:
        """Count a part, of the offer or of a file, that the agent acknowledged, and send more.

        Raises:
            OSError: a file can no longer be read.
            ValueError: no part is unacknowledged.
        """
        if self._under_way:
            self._under_way -= 1
        elif self._late:
            self._late -= 1
        else:
            raise ValueError("it took a part of a file that was not sent")
        self._send_more()

    def _checked(self, wanted: Iterable[object]) -> list[tuple[str, int]]:
        sizes = {file.sha256: file.size for file in self._code.files}
        offsets: dict[str, int] = {}
        for item in wanted:
            match item:
                case [str(sha256), offset] if (
                    type(offset) is int and 0 <= offset <= sizes.get(sha256, -1) and sha256 not in offsets
                ):
                    offsets[sha256] = offset
                case _:
                    raise ValueError("it asks for a file that was not offered, or for one twice")
        return list(offsets.items())

    def _begin(self, frames: Iterator[bytes], late: int) -> None:
        self._frames = frames
        self._late, self._under_way = late, 0
        self._send_more()

    def _send_more(self) -> None:
        while self._under_way < _AHEAD and (frame := next(self._frames, None)) is not None:
            self._under_way += 1
            self._send(frame)


def _frame(part: Part) -> bytes:
    message = {"kind": "file_part", "sha256": part.sha256, "offset": part.offset, "is_last": part.is_last}
    return wire.encode(message, part.data)
