"""Keep the output of one attempt of a task until the supervisor has it.

A byte is identified by its offset in everything that the attempt wrote. Output waits in memory as long as the reader
keeps up, otherwise on disk. When the disk is full, a little more is kept in memory. Beyond that, or beyond ``limit``
unacknowledged bytes, further output is discarded, and the position and size of the gap are recorded for the log. A slow
link therefore costs disk space, then output, but never delays training.

The files have no name: they are unlinked right after they are opened, so a crash leaves nothing behind.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import itertools
import os

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

    def close(self) -> None:
        """Do nothing: a gap holds no resources."""


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

    def close(self) -> None:
        """Do nothing: the memory is freed with the object."""


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

    def close(self) -> None:
        os.close(self.file)


class Spool:
    """Output that is appended at the end and can be read from any offset that is not yet released."""

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
        kept = 0 if self._is_on_disk() else self._hold(data[:room], NEAR)
        kept += self._write(data[kept:room])
        kept += self._hold(data[kept:room], MEMORY)
        if kept < len(data):
            self._drop(len(data) - kept)

    def _is_on_disk(self) -> bool:
        """Return whether output already waits on disk, so that new output must queue behind it."""
        return any(isinstance(part, _Segment) for part in self._parts)

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
            segment.close()
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
        """Return up to ``size`` bytes from ``offset`` on (empty at the end), or the gap at that offset."""
        for part in self._parts:
            if part.offset <= offset < part.offset + part.size:
                return part.read(offset, size)
        return b""

    def release(self, offset: int) -> None:
        """Discard everything before ``offset``, because the supervisor has it."""
        self.released = max(self.released, min(offset, self.end))
        while self._parts and self._parts[0].offset + self._parts[0].size <= self.released:
            part = self._parts.pop(0)
            self._held -= part.size if isinstance(part, _Held) else 0
            part.close()

    def close(self) -> None:
        """Discard everything."""
        for part in self._parts:
            part.close()
        self._parts.clear()
