"""Append to files of lines whose writer may be killed at any time."""

from __future__ import annotations

import os
from pathlib import Path

_BLOCK = 64 * 1024


def open_to_append(path: Path) -> int:
    """Open or create a private file of lines, without an incomplete last one.

    Raises:
        OSError: the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    # The last line is incomplete if its writer was killed within it, or the disk was full: the next line would continue
    # it, and a reader would take both for one damaged line.
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
    """Append all of the lines or none; return whether the disk had room."""
    try:
        kept = os.write(descriptor, lines)
    except OSError:
        return False
    if kept < len(lines):  # the disk is full: take back the beginning, which readers would wait for the end of
        os.ftruncate(descriptor, os.fstat(descriptor).st_size - kept)
    return kept == len(lines)
