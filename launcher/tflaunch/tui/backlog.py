"""Write output for a slow reader: as much as memory may hold of it, the newest."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

MOST_BEHIND = 32 * 1024 * 1024
"""Maximum bytes of memory for output that a reader has not taken; beyond it, the older half is skipped."""

_OVERHEAD = 128  # bytes of memory that a piece takes beside its data
_AT_ONCE = 64 * 1024  # bytes of one write, small enough to tell a slow reader from a stalled one
_SKIPPED = "MB of output are not shown here, as their reader could not keep up; the logs have them (tflaunch logs)"


class Piece(NamedTuple):
    """What is written next: output of ``task``, or of tflaunch if that is None.

    ``ends_line``: terminate the task's unfinished line.
    """

    task: str | None
    data: bytes
    ends_line: bool = False


class Backlog:
    """A queue that never blocks its producer. One thread adds, another takes."""

    def __init__(self, limit: int = MOST_BEHIND) -> None:
        """Start empty; ``limit``: bytes of memory for output."""
        self._limit = limit
        self._changed = threading.Condition()
        self._entries: deque[Piece | int] = deque()
        """Pieces, and the numbers of bytes that were skipped between them."""
        self._held = 0
        self._is_busy = False
        self._is_closed = False

    def add(self, piece: Piece) -> None:
        """Queue a piece."""
        with self._changed:
            self._entries.append(piece)
            self._held += _size(piece)
            if self._held > self._limit:
                self._skip()
            self._changed.notify_all()

    def _skip(self) -> None:
        """Replace the oldest output by its size, after the messages among it."""
        messages: list[Piece] = []
        tasks: set[str] = set()
        skipped = 0
        while self._held > self._limit // 2:
            entry = self._entries.popleft()
            if isinstance(entry, int):
                skipped += entry
            elif entry.task is None:
                messages.append(entry)
            else:
                self._held -= _size(entry)
                skipped += len(entry.data)
                tasks.add(entry.task)
        ends = [Piece(task, b"", ends_line=True) for task in sorted(tasks)]
        self._held += sum(map(_size, ends))
        self._entries.extendleft(reversed([*messages, *ends, skipped]))

    def take(self, patience: float | None) -> Piece | None:
        """Return the next piece, after at most ``patience`` seconds (None: no limit).

        Returns None on timeout, or when there are no more pieces.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._entries or self._is_closed, patience)
            if not self._entries:
                return None
            self._is_busy = True
            entry = self._entries.popleft()
            if isinstance(entry, int):
                return Piece(None, f"tflaunch: {entry / 1e6:.1f} {_SKIPPED}\n".encode())
            self._held -= _size(entry)
            return entry

    def drop_output(self) -> None:
        """Discard queued output: its reader is gone."""
        with self._changed:
            self._entries = deque(entry for entry in self._entries if isinstance(entry, Piece) and entry.task is None)
            self._held = 0

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


def _size(piece: Piece) -> int:
    """Return what counts of a piece; messages are few, and never skipped."""
    return 0 if piece.task is None else len(piece.data) + _OVERHEAD


class Writer:
    """Writes a backlog to a descriptor in a thread that starts with the first piece."""

    def __init__(self, descriptor: int, write_all: Callable[[Writer], None]) -> None:
        self.backlog = Backlog()
        self._descriptor = descriptor
        self._write_all = write_all
        self._thread: threading.Thread | None = None
        self.error: OSError | None = None
        """Why the descriptor takes no more data."""
        self._writes = 0

    def add(self, piece: Piece) -> None:
        """Queue a piece for writing."""
        if self._thread is None:
            thread = threading.Thread(target=self._write_all, args=(self,), name="screen", daemon=True)
            thread.start()  # it may fail
            self._thread = thread
        self.backlog.add(piece)

    def write(self, data: bytes) -> None:
        """Write data, blocking on the reader; without a reader, discard it."""
        view = memoryview(data)
        while view and self.error is None:
            try:
                view = view[os.write(self._descriptor, view[:_AT_ONCE]) :]
                self._writes += 1
            except BlockingIOError:  # another program has made the shared terminal or pipe non-blocking
                # no limit: in the writer's thread, which is left behind at the end
                select.select([], [self._descriptor], [])
            except OSError as error:
                # The reader (`| head`) is gone, or the disk is full: the job continues, and its logs are complete.
                self.error = error
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
