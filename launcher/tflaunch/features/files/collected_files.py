"""A store for a working directory's files by path; files that match are kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from tflaunch import private_files

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_READ = 1 << 20
_PARTS = ".parts"


class CollectedFiles:
    """The stored files of a working directory; only complete ones have their names."""

    def __init__(self, directory: Path, name: str) -> None:
        """Store files in ``directory``/``name``, created for the first; parts beside it."""
        self.directory = directory / name
        self._parts = directory / _PARTS / name

    def has(self, path: str, size: int, sha256: str) -> bool:
        """Return whether a file with this content is stored under a relative path."""
        stored = self.directory / path
        try:
            if stored.is_symlink() or not stored.is_file() or stored.stat().st_size != size:
                return False
            with stored.open("rb") as file:
                return _hash(file.fileno()).hexdigest() == sha256
        except OSError:
            return False

    def fetch(self, path: str, size: int, sha256: str, read: Callable[[int], bytes]) -> bool:
        """Store a file, beginning where an earlier attempt to fetch this content stopped.

        Args:
            path: relative, without ``..``.
            size: the number of bytes.
            sha256: the SHA-256 of the content, in hexadecimal.
            read: returns the bytes from an offset on, at least one of them unless the file has changed.

        Returns:
            Whether it is stored; it is not if the file has changed since it was listed.

        Raises:
            OSError: it cannot be stored.
        """
        private_files.make_directories(self._parts)
        part = self._parts / sha256
        with open(os.open(part, _FLAGS, 0o600), "r+b", buffering=0) as file:
            known, offset = _hash(file.fileno()), os.fstat(file.fileno()).st_size
            while offset < size:
                data = read(offset)[: size - offset]
                if not data:
                    break
                _write(file.fileno(), data)
                known.update(data)
                offset += len(data)
        if known.hexdigest() != sha256:
            part.unlink()
            return False
        target = self.directory / path
        private_files.make_directories(target.parent)
        part.replace(target)
        return True

    def forget_parts(self) -> None:
        """Remove the directories of incomplete files that are empty."""
        for directory in (self._parts, self._parts.parent):
            try:
                directory.rmdir()
            except OSError:
                return  # there are incomplete files, for the next attempt


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _hash(descriptor: int) -> hashlib._Hash:
    found, offset = hashlib.sha256(), 0
    while data := os.pread(descriptor, _READ, offset):
        found.update(data)
        offset += len(data)
    return found
