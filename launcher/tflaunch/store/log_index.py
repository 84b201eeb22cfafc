"""Index when output in a log was written, by time and by position."""

from __future__ import annotations

import bisect
import os
import struct
from pathlib import Path
from typing import NamedTuple

from tflaunch.private_files import append

INTERVAL = 0.05
"""Seconds within which output shares an entry."""

_ENTRY = struct.Struct("!dQ")
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_LATEST, _FARTHEST = 2.0**33, 1 << 62  # seconds since the epoch, bytes: beyond any clock and any log
_BLOCK = 256  # entries read at once
_VARIANCE = 60.0  # seconds; a larger step back is a clock that was set, not an inexact comparison of clocks


class Entry(NamedTuple):
    """The start, at byte ``at``, of output written at ``time`` (seconds since epoch)."""

    time: float
    at: int


class TimeIndex:
    """Writes the index of one log. A full disk costs entries, never the job."""

    def __init__(self, path: Path, size: int) -> None:
        """Open the index of a log of ``size`` bytes; the first entry creates the file.

        Raises:
            OSError: the index exists but cannot be opened.
        """
        self._path = path
        self._file = -1
        self._last: Entry | None = None
        if path.exists():
            self._open()
            self.cut(size)

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        self._file = os.open(self._path, _FLAGS, 0o600)

    @property
    def last(self) -> float | None:
        """The time of the last entry, None if there is none."""
        return None if self._last is None else self._last.time

    def add(self, entry: Entry) -> None:
        """Write an entry unless the previous one covers it; flatten small steps back."""
        last = self._last
        if last is not None:
            if 0 <= last.time - entry.time < _VARIANCE:
                entry = entry._replace(time=last.time)
            if 0 <= entry.time - last.time < INTERVAL and entry.at >= last.at:
                return
        try:
            if self._file < 0:
                self._open()
        except OSError:
            return
        if append(self._file, _ENTRY.pack(*entry)):
            self._last = entry

    def cut(self, size: int) -> None:
        """Remove the entries after byte ``size`` of the log, whose output was not written."""
        if self._file < 0:
            return
        count = os.fstat(self._file).st_size // _ENTRY.size
        while (last := _entry(self._file, count - 1)) is not None and last.at > size:
            count -= 1
        self._last = last
        os.ftruncate(self._file, count * _ENTRY.size)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)


class IndexReader:
    """Reads the index of a log, which another process may be writing."""

    def __init__(self, path: Path) -> None:
        """Prepare to read the index at ``path``; if it does not exist, no time is known."""
        self._path = path

    def __len__(self) -> int:
        try:
            return self._path.stat().st_size // _ENTRY.size
        except OSError:
            return 0

    def __getitem__(self, number: int) -> Entry:
        found = self.entries(number, 1)
        if not found:
            raise IndexError(number)
        return found[0]

    def entries(self, first: int, count: int) -> list[Entry]:
        """Return up to ``count`` entries, starting with number ``first``."""
        try:
            with self._path.open("rb", buffering=0) as file:
                file.seek(first * _ENTRY.size)
                data = file.read(count * _ENTRY.size)
        except OSError:
            return []
        return [_sound(*fields) for fields in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size])]

    def clock(self, position: int) -> Clock:
        """Return a clock that dates bytes from ``position`` on."""
        return Clock(self, max(bisect.bisect_right(self, position, key=lambda entry: entry.at) - 1, 0))


class Clock:
    """Tells when bytes were written, for increasing positions."""

    def __init__(self, index: IndexReader, number: int) -> None:
        """Start with entry ``number`` of the index."""
        self._index = index
        self._number = number
        self._entries: list[Entry] = []
        self._next = 0
        self._time = 0.0
        self.look()

    def look(self) -> None:
        """Load new entries, after the output that they date was read."""
        del self._entries[: self._next]
        self._next = 0
        new = self._index.entries(self._number, _BLOCK - len(self._entries))
        self._number += len(new)
        self._entries += new

    def at(self, position: int) -> float:
        """Return when a byte was written, in seconds since the epoch; 0.0 if unknown."""
        while self._next < len(self._entries) and self._entries[self._next].at <= position:
            self._time = self._entries[self._next].time
            self._next += 1
            if self._next == _BLOCK:
                self.look()
        return self._time


def _sound(moment: float, at: int) -> Entry:
    """Return an entry as read; a damaged one is beyond any log."""
    return Entry(moment if 0 <= moment < _LATEST else 0.0, min(at, _FARTHEST))


def _entry(file: int, number: int) -> Entry | None:
    data = os.pread(file, _ENTRY.size, number * _ENTRY.size) if number >= 0 else b""
    return _sound(*_ENTRY.unpack(data)) if len(data) == _ENTRY.size else None
