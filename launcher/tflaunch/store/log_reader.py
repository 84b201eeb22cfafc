"""Read the logs of a run's tasks, merged by time."""

import bisect
import heapq
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tflaunch.store.log_index import Clock, IndexReader
from tflaunch.store.log_writer import Mark, last_state, parse_mark, path_of, times_of
from tflaunch.store.run_dir import RunDirectory


class Line(NamedTuple):
    """A line of a task's log."""

    time: float
    """When the end of the line was read on the task's host, in seconds since the epoch; 0.0 if unknown."""
    task: str
    attempt: int
    text: bytes
    """The line without its newline, and without text that a progress bar overwrote."""


class LogReader:
    """Reads the logs of a run, which may be live."""

    def __init__(self, directory: Path, logs: Path, tasks: Sequence[str]) -> None:
        """Prepare to read the logs of tasks; their order decides between equal times."""
        run = RunDirectory.existing(directory, logs)
        self._logs = {task: OneLog(task, path_of(logs, task), times_of(run.times, task)) for task in tasks}
        self._marks = run.marks
        self._marks_read = 0
        self._mark_lines = 0

    def read(self, since: float | None = None, attempt: int | None = None, tail: int | None = None) -> Iterator[Line]:
        """Return all complete lines written so far, merged by time.

        Only those since a time (seconds since the epoch), only those of an ``attempt``, also in later calls, and only
        this many of each task's last such lines.
        """
        self._read_marks()
        return _merged([log.read(since, attempt, tail) for log in self._logs.values()])

    def new_lines(self) -> Iterator[Line]:
        """Return complete lines since the last call of this or `read`, merged by time."""
        self._read_marks()
        return _merged([log.new_lines() for log in self._logs.values()])

    def rest(self) -> Iterator[Line]:
        """Return the incomplete last lines; they count as read."""
        self._read_marks()
        return _merged([log.rest() for log in self._logs.values()])

    def lost(self) -> list[Path]:
        """Return the logs that another program has shortened or removed."""
        self._read_marks()
        return [log.path for log in self._logs.values() if log.is_lost]

    def _read_marks(self) -> None:
        """Read new marks, which are written before the output that they mark."""
        try:
            with self._marks.open("rb") as file:
                file.seek(self._marks_read)
                lines, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return
        self._marks_read += len(lines) + len(newline)
        for line in lines.split(b"\n") if newline else ():
            self._mark_lines += 1
            mark = parse_mark(self._marks, self._mark_lines, line)
            if mark.task in self._logs:
                self._logs[mark.task].add_mark(mark)


def _merged(logs: Iterable[Iterable[Line]]) -> Iterator[Line]:
    return heapq.merge(*logs, key=lambda line: line.time)


LONGEST = 4 * 1024 * 1024
"""The maximum bytes of a line; a longer line is returned in pieces."""

_SHORT = 64 * 1024

_BLOCK = 64 * 1024


class OneLog:
    """Reads what a run has written to a task's log, in constant memory."""

    def __init__(self, task: str, path: Path, times: Path) -> None:
        """Prepare to read the log at ``path``, with its time index at ``times``."""
        self._task = task
        self.path = path
        self._index = IndexReader(times)
        self._places: list[int] = []
        self._attempts: list[int] = []
        self._attempt: int | None = None
        self._position: int | None = None
        self._searched = 0
        self._is_short = False
        self._clock: Clock | None = None

    def add_mark(self, mark: Mark) -> None:
        """Add an attempt's start; the first mark begins this run in a shared --log-dir."""
        while self._places and self._places[-1] > mark.at:
            # Our lines before it were never written: the supervisor was killed, and the next one set a new mark.
            self._places.pop()
            self._attempts.pop()
        if not self._attempts or self._attempts[-1] != mark.attempt:
            self._places.append(mark.at)
            self._attempts.append(mark.attempt)

    @property
    def is_lost(self) -> bool:
        """Whether the log is gone, or ends before its last output began."""
        count = len(self._index)
        return bool(count) and (not self.path.exists() or self._index[count - 1].at > self._size())

    def read(self, since: float | None, attempt: int | None, tail: int | None) -> Iterator[Line]:
        """Return all complete lines written so far, as `LogReader.read` does."""
        self._attempt = attempt
        if not self._places:
            return iter(())
        self._position = self._searched = self._places[0]
        start, end = self._take_new() or (self._position, self._position)
        start, end = self._of_attempt(start, end, attempt)
        if since is not None:
            start = max(start, self._at_time(since, end))
        if tail is not None:  # from the newline before the first of these lines on
            start = (self._after_newline(start, end, tail + 1) or start) if tail > 0 else end
        self._is_short = tail is not None
        return self._lines(start, end, self._index.clock(start))

    def new_lines(self) -> Iterator[Line]:
        """Return the complete lines since the last call; consume them before the next."""
        taken = self._take_new()
        return iter(()) if taken is None else self._lines(*taken, self._clock_from(taken[0]))

    def rest(self) -> Iterator[Line]:
        """Return the last line if it is incomplete; it counts as read.

        If `read` was called with ``tail``, only the line's end is returned.
        """
        start, size = self._begin(), self._size()
        if start is None or size <= start:
            return iter(())
        if self._is_short:
            start = max(start, size - _SHORT)
        self._position = self._searched = size
        return self._lines(start, size, self._clock_from(start), has_unfinished=True)

    # ---- positions in the log

    def _begin(self) -> int | None:
        """Return where to continue reading, None if the run has not written anything."""
        if self._position is None and self._places:
            self._position = self._searched = self._places[0]
        return self._position

    def _take_new(self) -> tuple[int, int] | None:
        """Return the range of new complete lines, and mark them as read; None without any."""
        start = self._begin()
        if start is None:
            return None
        size = self._size()
        end = self._after_newline(max(start, self._searched), size)
        self._searched = size
        if end is None:
            return None
        self._position, self._is_short = end, False
        return start, end

    def _of_attempt(self, start: int, end: int, attempt: int | None) -> tuple[int, int]:
        if attempt is None:
            return start, end
        if attempt not in self._attempts:
            return end, end
        number = self._attempts.index(attempt)
        if number > 0:
            start = self._line_start(min(self._places[number] - 1, end))
        if number + 1 < len(self._places):
            end = min(end, self._line_start(min(self._places[number + 1] - 1, end)))
        return start, end

    def _at_time(self, since: float, end: int) -> int:
        """Return the start of the line that was being written at a time."""
        count = len(self._index)
        number = bisect.bisect_left(self._index, since, key=lambda entry: entry.time)
        if count and number >= count:
            return end
        return self._line_start(min(self._index[number].at, end)) if number < count else self._places[0]

    def _line_start(self, position: int) -> int:
        """Return the start of the line that contains the byte at a position."""
        begin = self._places[0]
        return self._after_newline(begin, position) or begin

    def _after_newline(self, low: int, high: int, number: int = 1) -> int | None:
        """Return the position after the last newlines in a range, None if there are fewer."""
        while high > low:
            start = max(high - _BLOCK, low)
            data = self._read(start, high)
            here = data.count(b"\n")
            if here >= number:
                for _ in range(number):
                    data = data[: data.rfind(b"\n")]
                return start + len(data) + 1
            number -= here
            high = start
        return None

    # ---- lines

    def _clock_from(self, start: int) -> Clock:
        """Return the clock for following the log, which continues where it was."""
        if self._clock is None:
            self._clock = self._index.clock(start)
        return self._clock

    def _lines(self, start: int, end: int, clock: Clock, has_unfinished: bool = False) -> Iterator[Line]:
        """Yield the wanted lines of a range; ``has_unfinished``: also its unfinished line."""
        partial, here = b"", start
        while here < end and (block := self._read(here, min(here + _BLOCK, end))):
            clock.look()
            *whole, rest = block.split(b"\n")
            for piece in whole:
                here += len(piece) + 1
                if self._is_wanted(here):
                    yield Line(clock.at(here - 1), self._task, self._attempt_at(here), last_state(partial + piece))
                partial = b""
            here += len(rest)
            partial += rest
            if len(partial) > _BLOCK and b"\r" in rest:
                partial = partial[partial.rstrip(b"\r").rfind(b"\r") + 1 :]
            if len(partial) > LONGEST:
                if self._is_wanted(here):
                    yield Line(clock.at(here - 1), self._task, self._attempt_at(here), partial)
                partial = b""
        if partial and has_unfinished and self._is_wanted(here):
            yield Line(clock.at(here - 1), self._task, self._attempt_at(here), last_state(partial))

    def _is_wanted(self, end: int) -> bool:
        return self._attempt is None or self._attempt == self._attempt_at(end)

    def _attempt_at(self, end: int) -> int:
        return self._attempts[max(bisect.bisect_right(self._places, end) - 1, 0)]

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def _read(self, start: int, end: int) -> bytes:
        """Read a range of the log, not kept open: logs may outnumber descriptors."""
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.pread(file, end - start, start)
        finally:
            os.close(file)
