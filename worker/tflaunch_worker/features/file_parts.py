"""Files of users that are sent in parts, and known by the hash of their content."""

from __future__ import annotations

import hashlib
import os
import time
from typing import BinaryIO, Callable, Collection

from tflaunch_worker.readable import printable

PART = 256 * 1024
"""Maximum bytes of a file in one answer of an agent."""

FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags to open a file that a task may replace by a link or a pipe."""

_DIRECTORY = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
_READ = 1 << 20


class FilesError(Exception):
    """Raised when files cannot be stored here; the message is one sentence."""


class ArrivingFile:
    """What has arrived of a file: its size in bytes, and its hash."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self.sha256 = hashlib.sha256()  # hashed as data arrives, because the agent must not block on it later

    def append(self, data: bytes) -> None:
        """Store the next bytes; raise `OSError` if the disk is full, for instance."""
        with open(self.path, "ab", buffering=0) as file:
            while data:
                written = file.write(data) or 0
                self.sha256.update(data[:written])
                self.size += written
                data = data[written:]


class ArrivingFiles:
    """Files that arrive in a directory, each named by a prefix and its content's hash."""

    def __init__(self, directory: str, prefix: str = "") -> None:
        self._directory = directory
        self._prefix = prefix
        self._files: dict[str, ArrivingFile] = {}

    def size_of(self, digest: str) -> int:
        """Return how many bytes of a file have arrived."""
        return self._files[digest].size if digest in self._files else 0

    def retain(self, kept: Collection[str]) -> list[str]:
        """Forget all files but those with these hashes; return the names of the rest."""
        self._files = {digest: file for digest, file in self._files.items() if digest in kept}
        return [self._prefix + digest for digest in self._files]

    def take(self, digest: str, offset: int, data: bytes, is_last: bool, target: str) -> bool:
        """Store a part; move the whole to ``target``; return False if its hash differs.

        Raises:
            FilesError: it cannot be stored, for example because the disk is full.
            ValueError: an earlier part is missing.
        """
        if offset == 0:
            self._files[digest] = ArrivingFile(os.path.join(self._directory, self._prefix + digest))
        file = self._files.get(digest)
        if file is None or offset != file.size:
            raise ValueError(f"byte {offset} of {digest} does not follow what has arrived")
        try:
            if offset == 0:
                os.makedirs(self._directory, mode=0o700, exist_ok=True)
                unlink_if_there(file.path)  # left by an earlier agent of this run that was killed with its guard
            file.append(data)
            is_damaged = is_last and file.sha256.hexdigest() != digest
            if is_last and not is_damaged:
                os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
                os.replace(file.path, target)
        except OSError as error:
            self._forget(digest)
            raise FilesError(reason_of(error, self._directory)) from None
        if is_last:
            self._forget(digest)
        return not is_damaged

    def _forget(self, digest: str) -> None:
        unlink_if_there(self._files.pop(digest).path)


def hash_file(source: BinaryIO, copy: BinaryIO | None = None, rate: float | None = None) -> tuple[int, str]:
    """Return size and SHA-256 of a file, and copy it. May take long.

    ``rate``: maximum bytes per second to read, None for no limit.
    """
    sha256, size, began_at = hashlib.sha256(), 0, time.monotonic()
    while True:
        data = source.read(_READ)
        if not data:
            return size, sha256.hexdigest()
        sha256.update(data)
        size += len(data)
        if copy is not None:
            copy.write(data)
        if rate is not None:
            time.sleep(max(size / rate - (time.monotonic() - began_at), 0.0))


def read_part(opened: Callable[[], int], offset: int) -> bytes:
    """Return a part of the file that ``opened`` opens; empty if it is unreadable."""
    try:
        descriptor = opened()
    except OSError:
        return b""
    try:
        return os.pread(descriptor, PART, offset)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def open_inside(directory: str, path: str) -> int:
    """Open a file below a directory without following links; else raise `OSError`."""
    *parents, name = path.split("/")
    inside = os.open(directory, _DIRECTORY & ~os.O_NOFOLLOW)
    for parent in parents:
        try:
            child = os.open(parent, _DIRECTORY, dir_fd=inside)
        finally:
            os.close(inside)
        inside = child
    try:
        return os.open(name, FILE, dir_fd=inside)
    finally:
        os.close(inside)


def leads_through(path: str, others: Collection[str]) -> str:
    """Return which of other paths a path leads through, "" for none."""
    parts = path.split("/")
    above = ("/".join(parts[:count]) for count in range(1, len(parts)))
    return next((each for each in above if each in others), "")


def unlink_if_there(path: str) -> None:
    """Remove a file, if there is one."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def reason_of(error: OSError, place: str) -> str:
    """Return why files cannot be stored, in one line: names may hold any character."""
    return printable(f"{error.filename or place}: {error.strerror}")
