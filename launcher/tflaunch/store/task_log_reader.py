"""Reading one task's log: the part that a run has written, by time, by attempt, from its end, as it grows."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator
from pathlib import Path

from tflaunch.store.log_index import Clock, IndexReader
from tflaunch.store.log_line import Line, last_state
from tflaunch.store.log_writer import Mark

LONGEST = 64 * 1024
"""Bytes of a line; a longer one comes in pieces."""

_BLOCK = 64 * 1024


class OneLog:
    """What a run has written into a task's log. Memory does not depend on how much that is."""

    def __init__(self, task: str, path: Path, times: Path) -> None:
        """Prepare to read the log at ``path``, with the index of its times at ``times``."""
        self._task = task
        self._path = path
        self._index = IndexReader(times)
        self._places: list[int] = []
        self._attempts: list[int] = []
        self._attempt: int | None = None
        self._position: int | None = None
        self._searched = 0
        self._is_short = False
        self._clock: Clock | None = None

    def add_mark(self, mark: Mark) -> None:
        """Know where an attempt begins. The first mark is where this run begins: --log-dir may hold earlier ones."""
        while self._places and self._places[-1] > mark.at:
            # Its words were not written any more: the supervisor was killed, and the next one marked where it went on.
            self._places.pop()
            self._attempts.pop()
        if not self._attempts or self._attempts[-1] != mark.attempt:
            self._places.append(mark.at)
            self._attempts.append(mark.attempt)

    def read(self, since: float | None, attempt: int | None, tail: int | None) -> Iterator[Line]:
        """Return the whole lines that are there now.

        Args:
            since: only what was written since then, in seconds since the epoch.
            attempt: only lines of this attempt, also in what is read later.
            tail: only so many of the last of them.
        """
        self._attempt = attempt
        if not self._places:
            return iter(())
        self._position = self._searched = self._places[0]
        start, end = self._take_new() or (self._position, self._position)
        start, end = self._of_attempt(start, end, attempt)
        if since is not None:
            start = max(start, self._at_time(since, end))
        if tail is not None:
            start = self._back(tail, start, end)
        self._is_short = tail is not None
        return self._lines(start, end, self._index.clock(start))

    def new_lines(self) -> Iterator[Line]:
        """Return the whole lines that have come since lines were read; to be taken before any more are asked for."""
        taken = self._take_new()
        return iter(()) if taken is None else self._lines(*taken, self._clock_from(taken[0]))

    def rest(self) -> Iterator[Line]:
        """Return the last line if it is not finished; it counts as read.

        Only its end is returned where only the last lines were wanted.
        """
        start, size = self._begin(), self._size()
        if start is None or size <= start:
            return iter(())
        if self._is_short:
            start = max(start, size - LONGEST)
        self._position = self._searched = size
        return self._lines(start, size, self._clock_from(start), has_unfinished=True)

    # ---- places in the log

    def _begin(self) -> int | None:
        """Where reading goes on, None when the run has not begun to write."""
        if self._position is None and self._places:
            self._position = self._searched = self._places[0]
        return self._position

    def _take_new(self) -> tuple[int, int] | None:
        """Return from where to where there are whole lines that were not read; they now are."""
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
        """Narrow a range to the lines of an attempt, which begin with our line that names it."""
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
        """Where the line begins that was being written at a time."""
        count = len(self._index)
        number = bisect.bisect_left(self._index, since, key=lambda entry: entry.time)
        if count and number >= count:
            return end
        return self._line_start(min(self._index[number].at, end)) if number < count else self._places[0]

    def _line_start(self, position: int) -> int:
        """Where the line begins to which the byte at a position belongs."""
        begin = self._places[0]
        return self._after_newline(begin, position) or begin

    def _after_newline(self, low: int, high: int) -> int | None:
        """The place behind the last newline between two places, None when there is none."""
        while high > low:
            start = max(high - _BLOCK, low)
            found = self._read(start, high).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            high = start
        return None

    def _back(self, count: int, low: int, high: int) -> int:
        """Where the last ``count`` lines between two places begin, the higher one being behind a newline."""
        if count <= 0:
            return high
        wanted = count + 1  # the newline before the first of them
        while high > low:
            start = max(high - _BLOCK, low)
            data = self._read(start, high)
            here = data.count(b"\n")
            if here >= wanted:
                for _ in range(wanted):
                    data = data[: data.rfind(b"\n")]
                return start + len(data) + 1
            wanted -= here
            high = start
        return low

    # ---- lines

    def _clock_from(self, start: int) -> Clock:
        """What tells the times while the log is followed: it goes on where it was."""
        if self._clock is None:
            self._clock = self._index.clock(start)
        return self._clock

    def _lines(self, start: int, end: int, clock: Clock, has_unfinished: bool = False) -> Iterator[Line]:
        """Return the wanted lines between two places, with ``has_unfinished`` also what follows the last newline."""
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
            if len(partial) > LONGEST:
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
        """The attempt of a line with its end there: a mark is for the place behind our line that names the attempt."""
        return self._attempts[max(bisect.bisect_right(self._places, end) - 1, 0)]

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def _read(self, start: int, end: int) -> bytes:
        """Read from the log, which is not kept open: there may be more logs than a process may have files."""
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.pread(file, end - start, start)
        finally:
            os.close(file)
