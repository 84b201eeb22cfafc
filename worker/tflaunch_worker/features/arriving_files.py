"""Store files that the launcher sends in parts."""

from __future__ import annotations

import hashlib
import os


class FilesError(Exception):
    """Raised when files cannot be stored here; the message is one sentence."""


class ArrivingFile:
    """The part of a file that has arrived, at ``path``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self.sha256 = hashlib.sha256()  # hashed as data arrives, because the agent must not block on it later

    def append(self, data: bytes) -> None:
        """Append data to the file."""
        with open(self.path, "ab", buffering=0) as file:
            while data:
                written = file.write(data) or 0
                self.sha256.update(data[:written])
                self.size += written
                data = data[written:]


def unlink_if_there(path: str) -> None:
    """Remove a file, if there is one."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
