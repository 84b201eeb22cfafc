"""Write tasks' output and left files, each byte once, and then acknowledge it."""

from collections.abc import Callable
from typing import Any

from tflaunch.store.left_files import LeftFileStore
from tflaunch.store.log_sink import LogSink, Times
from tflaunch_worker import fields, schema
from tflaunch_worker.agent.task_output import CHUNK, WINDOW

KINDS = ("output", "output_lost", "output_ended")
"""The kinds of frames that carry output."""

_MOST_UNACKNOWLEDGED = WINDOW + CHUNK


class Output:
    """Passes on new output, and collects the acknowledgements for the agent."""

    def __init__(
        self,
        words: LogSink,
        files: LeftFileStore,
        noted: Callable[[], None],
        ours: Callable[[float], float],
        most_bytes: Callable[[str, int], float],
    ) -> None:
        """Prepare to receive the output of one host.

        ``files`` gets what comes from a source that is named ``TASK/NAME``; ``noted`` is called whenever there is
        something to acknowledge; ``ours`` and ``most_bytes`` are as in `HostClock` and `ExpectedReplies`.
        """
        self._words = words
        self._files = files
        self._noted = noted
        self._ours = ours
        self._most_bytes = most_bytes
        self._received: dict[tuple[str, int], int] = {}
        self._ended: set[tuple[str, int]] = set()
        self._offsets: dict[tuple[str, int], tuple[int, bool]] = {}
        self._acknowledged: dict[tuple[str, int], int] = {}

    def read(self, message: dict[str, Any], body: bytes) -> None:
        """Process a frame of one of the `KINDS`.

        Raises:
            ValueError: the frame is malformed, leaves a gap, or is of what the host was not asked for.
        """
        task, attempt = fields.text(message, "task"), fields.integer(message, "attempt")
        offset = fields.integer(message, "offset")
        if offset + len(body) > self._most_bytes(task, attempt):
            raise ValueError(f"output of attempt {attempt} of {task[:60]!r}, or more of it than it was asked for")
        match message["kind"]:
            case "output":
                times = _checked(fields.items(message, "times"), offset, len(body))
                self._read_bytes(task, attempt, offset, body, times)
            case "output_lost":
                self._read_gap(task, attempt, offset, fields.integer(message, "size"))
            case "output_ended":
                self._known(task, attempt, offset)
                self.end(task, attempt)
                self._note(task, attempt, offset, is_complete=True)

    def end(self, task: str, attempt: int) -> None:
        """End an attempt's output: its agent will send no more of it."""
        if (task, attempt) not in self._ended:
            self._ended.add((task, attempt))
            self._sink(task).end(task, attempt)

    def take_notes(self) -> list[list[object]]:
        """Return the acknowledgements due: [task, attempt, offset, has it ended] each."""
        notes: list[list[object]] = [[task, attempt, *state] for (task, attempt), state in self._offsets.items()]
        self._acknowledged.update({about: offset for about, (offset, _) in self._offsets.items()})
        self._offsets.clear()
        return notes

    def _read_bytes(self, task: str, attempt: int, offset: int, body: bytes, times: Times) -> None:
        known = self._known(task, attempt, offset)
        end = offset + len(body)
        if end > known and (task, attempt) in self._ended:
            raise ValueError(f"output of {task} goes on after its end")
        if end > self._acknowledged.setdefault((task, attempt), known) + _MOST_UNACKNOWLEDGED:
            raise ValueError(f"output of {task} is sent further ahead than {_MOST_UNACKNOWLEDGED} bytes")

        def written() -> None:
            self._note(task, attempt, end)

        if end > known:  # the bytes before `known` were received over a lost link, and not acknowledged in time
            self._received[(task, attempt)] = end
            since_known = [(at, self._ours(seconds)) for at, seconds in _from(times, known)]
            self._sink(task).write(task, attempt, body[known - offset :], since_known, written)
        else:
            written()

    def _read_gap(self, task: str, attempt: int, offset: int, size: int) -> None:
        end = offset + size
        known = self._known(task, attempt)
        if end > known:
            self._received[(task, attempt)] = end
            self._sink(task).lose(task, attempt, end - known)
        self._note(task, attempt, end)

    def _known(self, task: str, attempt: int, offset: int | None = None) -> int:
        """Return how many bytes of an attempt were received, or are certainly lost.

        ``offset`` is where its output goes on, or ends. After an earlier supervisor this may be further on: it has
        acknowledged output that it could not store, because the disk was full.

        Raises:
            ValueError: the host has left out output that was never acknowledged.
        """
        is_first = (task, attempt) not in self._received
        if is_first:
            self._received[(task, attempt)] = self._sink(task).kept(task, attempt) or 0
        known = self._received[(task, attempt)]
        if offset is None or offset <= known:
            return known
        if not is_first or self._sink(task).kept(task, attempt) is None:
            raise ValueError(f"output of {task} goes on at byte {offset}, not {known}")
        self._sink(task).lose(task, attempt, offset - known)
        self._received[(task, attempt)] = self._acknowledged[(task, attempt)] = offset
        return offset

    def _sink(self, source: str) -> LogSink | LeftFileStore:
        return self._files if "/" in source else self._words

    def _note(self, task: str, attempt: int, offset: int, is_complete: bool = False) -> None:
        # The end can be noted before the last bytes are stored; neither note may overwrite the other.
        noted, was_complete = self._offsets.get((task, attempt), (0, False))
        self._offsets[(task, attempt)] = (max(noted, offset), was_complete or is_complete)
        self._noted()


def _checked(times: list[Any], offset: int, size: int) -> Times:
    """Return the times of ``size`` bytes from ``offset`` on, or raise ValueError."""
    checked: Times = []
    end = offset + size
    for time in reversed(times):
        match time:
            case [at, float(seconds)] if type(at) is int and offset <= at < end and abs(seconds) <= schema.MAX_TIME:
                checked.append((at, seconds))
                end = at
            case _:
                raise ValueError("the times of its output are out of order or out of range")
    if end != offset:
        raise ValueError("output comes without its times")
    return checked[::-1]


def _from(times: Times, start: int) -> Times:
    """Return the times from offset ``start`` on, with positions relative to it."""
    now_valid = max(at for at, _ in times if at <= start)
    return [(max(at - start, 0), seconds) for at, seconds in times if at >= now_valid]
