"""Keep an attempt's output until it is acknowledged, and send it in a window.

A byte is identified by its offset in everything that the attempt wrote. Output waits in memory as long as the reader
keeps up, otherwise on disk. When the disk is full, a little more is kept in memory. Beyond that, or beyond ``limit``
unacknowledged bytes, further output is discarded, and the position and size of the gap are recorded for the log. A slow
link therefore costs disk space, then output, but never delays training.

The files have no name: they are unlinked right after they are opened, so a crash leaves nothing behind.
"""

from __future__ import annotations

import bisect
import itertools
import os
from contextlib import suppress
from typing import Callable

from tflaunch_worker import wire

LIMIT = 1024 * 1024 * 1024
"""Maximum number of unacknowledged bytes kept per attempt."""

SEGMENT = 16 * 1024 * 1024
"""Bytes per file; disk space is freed file by file as output is acknowledged."""

NEAR = 1024 * 1024
"""Bytes per attempt that wait in memory: as many as may be in flight to a reader that keeps up."""

PIECE = 64 * 1024
"""Maximum bytes of a memory block in which small writes are combined."""

MEMORY = 4 * 1024 * 1024
"""Maximum bytes per attempt that are kept in memory when the disk is full."""


_numbers = itertools.count()


class Gap:
    """A gap in the output: ``size`` bytes from ``offset`` on were discarded."""

    def __init__(self, offset: int, size: int) -> None:
        self.offset = offset
        self.size = size

    def read(self, offset: int, size: int) -> Gap:
        """Return the rest of the gap from ``offset`` on."""
        return Gap(offset, self.offset + self.size - offset)


class _Held:
    """Output from ``offset`` on, kept in memory."""

    def __init__(self, offset: int, data: bytes) -> None:
        self.offset = offset
        self._data = bytearray(data)

    @property
    def size(self) -> int:
        return len(self._data)

    def add(self, data: bytes) -> None:
        self._data += data

    def read(self, offset: int, size: int) -> bytes:
        start = offset - self.offset
        return bytes(memoryview(self._data)[start : start + size])


class _Segment:
    """Output of ``size`` bytes from ``offset`` on, kept in an unnamed file."""

    def __init__(self, offset: int, directory: str) -> None:
        self.offset = offset
        self.size = 0
        path = f"{directory}/spool-{next(_numbers)}"
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)

    def write(self, data: bytes) -> int:
        written = os.pwrite(self.file, data[: SEGMENT - self.size], self.size)
        self.size += written
        return written

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self.file, min(size, self.offset + self.size - offset), offset - self.offset)


class Spool:
    """Output that is appended, and read from any offset that is not released."""

    def __init__(self, directory: str, limit: int = LIMIT) -> None:
        self._directory = directory
        self._limit = limit
        self._parts: list[_Segment | _Held | Gap] = []
        self._held = 0
        self.released = 0
        self.end = 0

    def append(self, data: bytes) -> None:
        """Keep ``data``, or as much of it as there is room for; the rest is discarded."""
        room = max(self._limit - (self.end - self.released), 0)
        is_on_disk = any(isinstance(part, _Segment) for part in self._parts)
        kept = 0 if is_on_disk else self._hold(data[:room], NEAR)
        kept += self._write(data[kept:room])
        kept += self._hold(data[kept:room], MEMORY)
        if kept < len(data):
            self._drop(len(data) - kept)

    def _write(self, data: bytes) -> int:
        kept = 0
        while kept < len(data):
            try:
                written = self._write_some(data[kept:])
            except OSError:
                break  # a full disk must not stop training
            kept += written
            self.end += written
        return kept

    def _write_some(self, data: bytes) -> int:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, _Segment) and last.size < SEGMENT:
            return last.write(data)
        segment = _Segment(self.end, self._directory)
        try:
            written = segment.write(data)
        except OSError:
            os.close(segment.file)
            raise
        self._parts.append(segment)
        return written

    def _hold(self, data: bytes, limit: int) -> int:
        data = data[: max(limit - self._held, 0)]
        if data:
            last = self._parts[-1] if self._parts else None
            if isinstance(last, _Held) and last.size + len(data) <= PIECE:
                last.add(data)
            else:
                self._parts.append(_Held(self.end, data))
            self._held += len(data)
            self.end += len(data)
        return len(data)

    def _drop(self, size: int) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, Gap):
            last.size += size
        else:
            self._parts.append(Gap(self.end, size))
        self.end += size

    def read(self, offset: int, size: int) -> bytes | Gap:
        """Return up to ``size`` bytes from ``offset`` on, or the gap at that offset."""
        for part in self._parts:
            if part.offset <= offset < part.offset + part.size:
                return part.read(offset, size)
        return b""

    def release(self, offset: int) -> None:
        """Discard everything before ``offset``, because the supervisor has it."""
        self.released = max(self.released, min(offset, self.end))
        while self._parts and self._parts[0].offset + self._parts[0].size <= self.released:
            self._discard_first()

    def close(self) -> None:
        """Discard everything."""
        while self._parts:
            self._discard_first()

    def _discard_first(self) -> None:
        part = self._parts.pop(0)
        if isinstance(part, _Segment):
            os.close(part.file)
        elif isinstance(part, _Held):
            self._held -= part.size


INTERVAL = 0.05
"""Seconds; output written within one interval gets the same time."""

MOST = 4096
"""Maximum number of records per attempt.

Beyond it every second one is removed, so that old times get coarser.
"""


class Times:
    """Times at which bytes were read: (offset, monotonic seconds), up to the next."""

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._seconds: list[float] = []

    def note(self, offset: int, now: float) -> None:
        """Record that output from ``offset`` on is read at ``now``."""
        if self._seconds and now - self._seconds[-1] < INTERVAL:
            return
        if len(self._offsets) >= MOST:
            del self._offsets[1::2], self._seconds[1::2]
        self._offsets.append(offset)
        self._seconds.append(now)

    def between(self, start: int, end: int) -> list[tuple[int, float]]:
        """Return the records from ``start`` to ``end``; the first is for ``start``."""
        first = max(bisect.bisect_right(self._offsets, start) - 1, 0)
        last = bisect.bisect_left(self._offsets, end)
        return [(max(self._offsets[number], start), self._seconds[number]) for number in range(first, last)]

    def release(self, offset: int) -> None:
        """Discard records that apply only to bytes before ``offset``."""
        first = max(bisect.bisect_right(self._offsets, offset) - 1, 0)
        del self._offsets[:first], self._seconds[:first]


CHUNK = 256 * 1024
WINDOW = 1024 * 1024
"""Maximum unacknowledged bytes in flight per attempt, which bounds what a slow reader must buffer."""


LOG_VARIABLE = "TFLAUNCH_LOG"
"""The variable of an agent with the path of a log that gets a copy of all output, such as that of its container."""


def open_copy(path: str) -> int:
    """Open a log for a copy of all output; return its descriptor, -1 if that fails."""
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC) if path else -1
    except OSError:
        return -1


class Stream:
    """The output of one attempt: its spool, how much was sent, and whether it ended.

    ``now`` returns seconds of the monotonic clock; output is sent with the time at which it was read. ``copy`` is the
    descriptor of a log that gets it, too, -1 for none.
    """

    def __init__(self, task: str, attempt: int, spool: Spool, now: Callable[[], float], copy: int = -1) -> None:
        self.task = task
        self.attempt = attempt
        self._spool = spool
        self._copy = copy
        self._times = Times()
        self._now = now
        self._sent = 0
        self._has_ended = False
        self._end_sent = False
        self.closed: Callable[[], None] = lambda: None
        """Called when nothing of it is kept any more."""

    def append(self, data: bytes) -> None:
        """Add output of the task."""
        self._times.note(self._spool.end, self._now())
        self._spool.append(data)
        if self._copy >= 0:
            with suppress(OSError):  # what the reader of a full pipe does not take is left out: nothing waits for it
                os.write(self._copy, data)

    def finish(self) -> None:
        """Mark the output as complete."""
        self._has_ended = True

    def rewind(self) -> None:
        """Send everything unacknowledged again, over a new link."""
        self._sent = self._spool.released
        self._end_sent = False

    def acknowledge(self, offset: int) -> None:
        """Note that the supervisor has everything before ``offset``."""
        self._spool.release(offset)
        self._times.release(self._spool.released)

    def close(self) -> None:
        """Discard everything kept."""
        self._spool.close()
        self.closed()

    def next_frame(self) -> bytes | None:
        """Return the next frame, None when nothing is left or the window is full."""
        if self._sent < self._spool.end:
            if self._sent - self._spool.released >= WINDOW:
                return None
            return self._next_part()
        if self._has_ended and not self._end_sent:
            self._end_sent = True
            return wire.encode(self._message("output_ended"))
        return None

    def _next_part(self) -> bytes:
        part = self._spool.read(self._sent, CHUNK)
        if isinstance(part, Gap):
            frame = wire.encode({**self._message("output_lost"), "size": part.size})
            self._sent += part.size
        else:
            times = self._times.between(self._sent, self._sent + len(part)) or [(self._sent, self._now())]
            frame = wire.encode({**self._message("output"), "times": times}, part)
            self._sent += len(part)
        return frame

    def _message(self, kind: str) -> dict[str, object]:
        return {"kind": kind, "task": self.task, "attempt": self.attempt, "offset": self._sent}
