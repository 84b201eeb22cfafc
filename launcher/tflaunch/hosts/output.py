"""The output of one host's tasks as its agent sends it: each byte kept once, and acknowledged when it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

KINDS = ("output", "output_lost", "output_ended")
"""The kinds of frames that carry output."""


Times = list[tuple[int, float]]
"""When the parts of some output were read on its host: position in it, and seconds; the first one at position 0."""


class Words(Protocol):
    """Where the output of tasks goes."""

    def write(self, task: str, attempt: int, data: bytes, times: Times, done: Callable[[], None]) -> None:
        """Keep output, with times of our monotonic clock; call ``done`` when it is out of our hands: more may come."""

    def kept(self, task: str, attempt: int) -> int | None:
        """Return how many bytes of an attempt an earlier supervisor has kept, None when there was none."""

    def lose(self, task: str, attempt: int, size: int) -> None:
        """State that output is missing."""

    def end(self, task: str, attempt: int) -> None:
        """An attempt will say no more."""


class Output:
    """Passes on what was not heard before, and notes what the agent may forget."""

    def __init__(self, words: Words, noted: Callable[[], None], ours: Callable[[float], float]) -> None:
        """Prepare for the output of one host.

        Args:
            words: takes the output.
            noted: called whenever something can be acknowledged.
            ours: turns a moment of the host's monotonic clock into ours; both are seconds.
        """
        self._words = words
        self._noted = noted
        self._ours = ours
        self._received: dict[tuple[str, int], int] = {}
        self._ended: set[tuple[str, int]] = set()
        self._offsets: dict[tuple[str, int], tuple[int, bool]] = {}

    def read(self, message: dict[str, Any], body: bytes) -> None:
        """Take a frame of one of the `KINDS`.

        Raises:
            ValueError: output is missing before it, or its times are none.
        """
        task, attempt, offset = message["task"], message["attempt"], message["offset"]
        match message["kind"]:
            case "output":
                self._read_bytes(task, attempt, offset, body, _checked(message["times"], offset, len(body)))
            case "output_lost":
                self._read_gap(task, attempt, offset, int(message["size"]))
            case "output_ended":
                self._read_end(task, attempt, offset)

    def end(self, task: str, attempt: int) -> None:
        """An attempt has ended, and its agent has nothing more to say of it."""
        if (task, attempt) not in self._ended:
            self._ended.add((task, attempt))
            self._words.end(task, attempt)

    def take_notes(self) -> list[list[object]]:
        """Return what to acknowledge since the last time: [task, attempt, offset, has it ended] each."""
        notes: list[list[object]] = [[task, attempt, *state] for (task, attempt), state in self._offsets.items()]
        self._offsets.clear()
        return notes

    def _read_bytes(self, task: str, attempt: int, offset: int, body: bytes, times: Times) -> None:
        known = self._known(task, attempt)
        if offset > known:
            if self._words.kept(task, attempt) is None:
                raise ValueError(f"output of {task} goes on at byte {offset}, not {known}")
            self._words.lose(task, attempt, offset - known)  # acknowledged, but a full disk had not kept it
            known = offset
        end = offset + len(body)

        def written() -> None:
            self._note(task, attempt, end)

        if end > known:  # the rest was sent before a link was lost, and not acknowledged in time
            self._received[(task, attempt)] = end
            since_known = [(at, self._ours(seconds)) for at, seconds in _from(times, known)]
            self._words.write(task, attempt, body[known - offset :], since_known, written)
        else:
            written()

    def _read_gap(self, task: str, attempt: int, offset: int, size: int) -> None:
        end = offset + size
        known = self._known(task, attempt)
        if end > known:
            self._received[(task, attempt)] = end
            self._words.lose(task, attempt, end - known)
        self._note(task, attempt, end)

    def _read_end(self, task: str, attempt: int, offset: int) -> None:
        self.end(task, attempt)
        self._note(task, attempt, offset, is_complete=True)

    def _known(self, task: str, attempt: int) -> int:
        """How much of an attempt's output was heard."""
        if (task, attempt) not in self._received:
            self._received[(task, attempt)] = self._words.kept(task, attempt) or 0
        return self._received[(task, attempt)]

    def _note(self, task: str, attempt: int, offset: int, is_complete: bool = False) -> None:
        # The end can be noted before the screen has taken the last bytes: neither may hide the other.
        noted, was_complete = self._offsets.get((task, attempt), (0, False))
        self._offsets[(task, attempt)] = (max(noted, offset), was_complete or is_complete)
        self._noted()


def _checked(times: Any, offset: int, size: int) -> Times:
    """Return the times of a frame with the bytes from ``offset`` on.

    Raises:
        ValueError: they are not in order, or not of those bytes.
    """
    checked: Times = []
    end = offset + size
    for at, seconds in reversed(times):
        if type(at) is not int or not offset <= at < end or type(seconds) is not float or not math.isfinite(seconds):
            raise ValueError("the times of its output are none")
        end = at
        checked.append((at, seconds))
    if end != offset:
        raise ValueError("output comes without its times")
    return checked[::-1]


def _from(times: Times, start: int) -> Times:
    """Return the times of what comes from offset ``start`` on, by position in that."""
    now_valid = max(at for at, _ in times if at <= start)
    return [(max(at - start, 0), seconds) for at, seconds in times if at >= now_valid]
