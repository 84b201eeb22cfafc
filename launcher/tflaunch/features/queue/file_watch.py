"""Wait for changes of files and directories (inotify), beside other descriptors."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

WRITTEN = 0x8  # IN_CLOSE_WRITE
"""A writer has closed the file, or was killed. Its locks are released just after that."""
ENTRIES = 0x40 | 0x80 | 0x100 | 0x200  # IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE
"""A directory has got or lost an entry."""

_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_EVENT = struct.Struct("iIII")  # watch, changes, cookie, length of the name that follows
_READ = 64 * 1024


class FileWatch:
    """A descriptor that is readable when a watched file or directory has changed."""

    def __init__(self) -> None:
        """Begin without files.

        Raises:
            OSError: the kernel has no inotify, or this user has too many of these descriptors.
        """
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._libc.inotify_init1(_FLAGS)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def add(self, path: Path, changes: int) -> bool:
        """Watch a file or directory for these changes; return whether it exists and can be watched."""
        return bool(self._libc.inotify_add_watch(self.descriptor, os.fsencode(path), changes) >= 0)

    def take_changes(self) -> int:
        """Return which changes there were since the last call."""
        found = 0
        try:
            while data := os.read(self.descriptor, _READ):
                at = 0
                while at < len(data):
                    _, changes, _, length = _EVENT.unpack_from(data, at)
                    found |= changes
                    at += _EVENT.size + length
        except BlockingIOError:
            pass
        return found

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)
