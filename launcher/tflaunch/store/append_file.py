"""Files that grow line by line, and whose writer may be killed at any moment."""

from __future__ import annotations

import os
from pathlib import Path

_BLOCK = 64 * 1024


def open_to_append(path: Path) -> int:
    """Open a file of lines, which only we read; a last line that was cut off is removed.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(end - _BLOCK, 0)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            os.ftruncate(descriptor, start + newline + 1)
            return descriptor
        end = start
    os.ftruncate(descriptor, 0)
    return descriptor


def append(descriptor: int, lines: bytes) -> bool:
    """Append lines to such a file, all of them or none; return whether there was room on the disk."""
    try:
        kept = os.write(descriptor, lines)
    except OSError:
        return False
    if kept < len(lines):
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - kept)
    return kept == len(lines)
