"""Write output for a slow reader: a little waits in memory, the rest in the logs."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tflaunch.store.log_writer import Kept

MEMORY = 4 * 1024 * 1024
"""Maximum bytes of output queued in memory."""

MOST_BEHIND = 32 * 1024 * 1024
"""Maximum bytes of output that a terminal may lag behind; beyond it, the older half is skipped."""

_SEGMENT = 1024 * 1024  # bytes that are read from one task's log before another task's turn
_STDOUT = 1
_AT_ONCE = 64 * 1024  # bytes of one write, small enough to tell a slow reader from a stalled one
_TOO_SLOW = "the terminal could not keep up; the logs have all of it (tflaunch logs)"
_NOWHERE = "the reader could not keep up, and the logs had no room for it"


class Piece(NamedTuple):
    """What is written next: output of ``task``, or of tflaunch if that is None.

    ``ends_line``: terminate the task's unfinished line.
    """

    task: str | None
    data: bytes
    ends_line: bool = False


class _Segment:
    """Bytes ``start`` to ``end`` of the log at ``path``."""

    def __init__(self, task: str, path: str, start: int, end: int) -> None:
        self.task = task
        self.path = path
        self.start = start
        self.end = end

    def extend(self, kept: Kept, size: int) -> bool:
        """Append what follows in the log; return False if not adjacent, or full."""
        if kept.start != self.end or kept.path != self.path or self.end - self.start >= _SEGMENT:
            return False
        self.end += size
        return True

    def read(self) -> bytes:
        """Return the bytes, fewer if the log was removed."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return b""
        try:
            return os.pread(descriptor, self.end - self.start, self.start)
        except OSError:
            return b""
        finally:
            os.close(descriptor)


class _Skipped:
    """Output that is not shown."""

    def __init__(self, size: int, reason: str) -> None:
        self.size = size
        self.reason = reason

    def piece(self) -> Piece:
        """Return the message about it."""
        return Piece(None, f"tflaunch: {self.size / 1e6:.1f} MB of output are not shown here: {self.reason}\n".encode())


class Backlog:
    """A queue that never blocks its producer. One thread adds, another takes."""

    def __init__(self, is_skipping: bool) -> None:
        """Start empty; ``is_skipping``: a reader far behind misses output, with a note."""
        self._is_skipping = is_skipping
        self._changed = threading.Condition()
        self._entries: deque[Piece | _Segment | _Skipped] = deque()
        self._growing: dict[str, _Segment] = {}
        self._held = 0
        self._stored = 0
        self._is_busy = False
        self._is_closed = False

    def add(self, piece: Piece, kept: Kept | None = None) -> None:
        """Queue a piece; ``kept``: where a log has the same output, None if none has."""
        size = len(piece.data)
        with self._changed:
            if piece.task is None or not size:
                self._growing.clear()  # later output of the tasks must come after it
                self._entries.append(piece)
            elif not self._stored and (not self._held or self._held + size <= MEMORY):
                self._held += size
                self._entries.append(piece)
            elif kept is not None:
                self._store(piece.task, kept, size)
            else:
                self._miss(size)
            self._changed.notify_all()

    def _store(self, task: str, kept: Kept, size: int) -> None:
        self._stored += size
        segment = self._growing.get(task)
        if segment is None or not segment.extend(kept, size):
            segment = _Segment(task, kept.path, kept.start, kept.start + size)
            self._growing[task] = segment
            self._entries.append(segment)

    def _miss(self, size: int) -> None:
        last = self._entries[-1] if self._entries else None
        if isinstance(last, _Skipped):
            last.size += size
        else:
            self._growing.clear()
            self._entries.append(_Skipped(size, _NOWHERE))

    def take(self, patience: float | None) -> Piece | None:
        """Return the next piece, after at most ``patience`` seconds (None: no limit).

        Returns None on timeout, or when there are no more pieces.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._entries or self._is_closed, patience)
            if not self._entries:
                return None
            if self._is_skipping and self._stored > MOST_BEHIND:
                self._skip()
            entry = self._entries.popleft()
            self._is_busy = True
            if isinstance(entry, _Segment):
                self._forget(entry)
            elif isinstance(entry, Piece) and entry.task is not None:
                self._held -= len(entry.data)
        if isinstance(entry, _Skipped):
            return entry.piece()
        return self._read(entry) if isinstance(entry, _Segment) else entry

    def _forget(self, segment: _Segment) -> None:
        self._stored -= segment.end - segment.start
        if self._growing.get(segment.task) is segment:
            del self._growing[segment.task]

    def _read(self, segment: _Segment) -> Piece:
        data = segment.read()
        missing = segment.end - segment.start - len(data)
        if missing:
            with self._changed:
                self._entries.appendleft(_Skipped(missing, f"{segment.path} was changed by another program"))
        return Piece(segment.task, data, ends_line=bool(missing))

    def _skip(self) -> None:
        """Replace the oldest output in the logs by a note of its size."""
        entries, size = self._entries, 0
        kept: deque[Piece | _Segment | _Skipped] = deque()
        tasks: dict[str, None] = {}
        while self._stored > MOST_BEHIND // 2:
            entry = entries.popleft()
            if isinstance(entry, _Segment):
                self._forget(entry)
                tasks[entry.task] = None
                size += entry.end - entry.start
            else:
                kept.append(entry)
        ends = [Piece(task, b"", ends_line=True) for task in tasks]
        entries.extendleft(reversed([*kept, *ends, _Skipped(size, _TOO_SLOW)]))

    def drop_output(self) -> None:
        """Discard queued output: its reader is gone."""
        with self._changed:
            self._entries = deque(entry for entry in self._entries if isinstance(entry, Piece) and entry.task is None)
            self._growing.clear()
            self._held = self._stored = 0

    def note_written(self) -> None:
        """Mark everything taken so far as written."""
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()

    def wait_until_written(self, patience: float | None = None) -> None:
        """Block until everything added is written, for at most ``patience`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._entries and not self._is_busy, patience)

    @property
    def is_over(self) -> bool:
        """Whether the queue is closed and empty."""
        with self._changed:
            return self._is_closed and not self._entries

    def close(self) -> None:
        """Tell the consumer that nothing follows the queued pieces."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def open(self) -> None:
        """Reopen after `close`."""
        self._is_closed = False


class Writer:
    """Writes the pieces of a backlog in a thread that starts with the first piece.

    ``own``: the descriptor for tflaunch's own messages.
    """

    def __init__(self, backlog: Backlog, write_all: Callable[[Writer], None], own: int) -> None:
        self.backlog = backlog
        self.own = own
        self._write_all = write_all
        self._thread: threading.Thread | None = None
        self.errors: dict[int, OSError] = {}
        """Why descriptors take no more data."""
        self._writes = 0

    def add(self, piece: Piece, kept: Kept | None = None) -> None:
        """Queue a piece for writing."""
        if self._thread is None:
            thread = threading.Thread(target=self._write_all, args=(self,), name="screen", daemon=True)
            thread.start()  # it may fail
            self._thread = thread
        self.backlog.add(piece, kept)

    def write(self, descriptor: int, data: bytes) -> None:
        """Write data, blocking on the reader; without a reader, discard it."""
        view = memoryview(data)
        while view and descriptor not in self.errors:
            try:
                view = view[os.write(descriptor, view[:_AT_ONCE]) :]
                self._writes += 1
            except BlockingIOError:  # another program has made the shared terminal or pipe non-blocking
                select.select([], [descriptor], [])  # no limit: in the writer's thread, which is left behind at the end
            except OSError as error:
                # The reader (`| head`) is gone, or the disk is full: the job continues, and its logs are complete.
                self.errors[descriptor] = error
                if descriptor == _STDOUT:
                    self.backlog.drop_output()

    def wait_until_written(self, patience: float | None = None) -> None:
        """Wait until everything is written, for at most ``patience`` seconds."""
        if self._thread is not None:
            self.backlog.wait_until_written(patience)

    def close(self, patience: float | None, until: float | None) -> bool:
        """Write everything, like `Screen.close`, ``until`` a time on the monotonic clock."""
        thread = self._thread
        if thread is None:
            return True
        self.backlog.close()
        writes = -1
        while thread.is_alive() and writes != self._writes and (until is None or time.monotonic() < until):
            writes = self._writes
            left = None if until is None else max(until - time.monotonic(), 0)
            thread.join(min(wait for wait in (patience, left) if wait is not None) if patience or until else None)
        if thread.is_alive():
            return False
        self._thread = None
        self.backlog.open()
        return True
