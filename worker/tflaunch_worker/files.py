"""The user's code on its way to this host: kept by content, so that only what changed travels.

A file is cached under the SHA-256 of its content and copied into the run's own directory, where its
tasks may change it. What no run has used for a month is forgotten.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CODE_NAME = "code"
_CACHE_NAME = "files"
_MONTH = 30 * 86400.0
_HEXADECIMAL = frozenset("0123456789abcdef")


class FilesError(Exception):
    """Why files cannot be kept here: one sentence."""


def code_directory(directory: str) -> str:
    """Return where the files of a run are, given its agent's directory."""
    return os.path.join(directory, _CODE_NAME)


class Files:
    """The files of one run."""

    def __init__(self, directory: str, files: list[list[Any]], links: list[list[str]]) -> None:
        """Compare what is offered with what is here.

        Args:
            directory: the agent's, at home/runs/RUN/agents/HOST.
            files: [path, mode, SHA-256] of each; paths are relative.
            links: [path, target] of each symbolic link.

        Raises:
            ValueError: a path leads out of the directory, or a hash is none.
        """
        home = os.path.normpath(os.path.join(directory, *[os.pardir] * 4))
        self._cache = os.path.join(home, _CACHE_NAME)
        self._place = code_directory(directory)
        self._files = [(_inside(path), int(mode), _hash(digest)) for path, mode, digest in files]
        self._links = [(_inside(path), str(target)) for path, target in links]
        self._missing = {digest for _, _, digest in self._files if not os.path.exists(self._cached(digest))}
        self.is_being_placed = False

    def wanted(self) -> list[str]:
        """Return the hashes of what has to be sent."""
        return sorted(self._missing)

    @property
    def is_complete(self) -> bool:
        """Whether nothing has to be sent any more."""
        return not self._missing

    def _cached(self, digest: str) -> str:
        return os.path.join(self._cache, digest)

    def take(self, digest: str, offset: int, data: bytes, is_last: bool) -> None:
        """Keep a part of a file.

        Raises:
            FilesError: there is no room, or the file is not what it was said to be.
        """
        if digest not in self._missing:
            return  # sent twice, after a lost link
        partial = self._cached(f"{digest}.{os.getpid()}")
        try:
            os.makedirs(self._cache, mode=0o700, exist_ok=True)
            with open(os.open(partial, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                file.truncate(offset)
                file.seek(offset)
                file.write(data)
            if is_last:
                self._finish(digest, partial)
        except OSError as error:
            raise FilesError(f"{self._cache}: {error.strerror}") from None

    def _finish(self, digest: str, partial: str) -> None:
        if _hash_of(partial) != digest:
            os.unlink(partial)
            raise FilesError("a file changed while it was sent; start again when nobody writes to it")
        os.replace(partial, self._cached(digest))
        self._missing.discard(digest)

    def place(self) -> str:
        """Copy everything to where the tasks find it; return "" or why that failed. May take long."""
        try:
            os.makedirs(self._place, mode=0o700, exist_ok=True)
            for path, mode, digest in self._files:
                target = os.path.join(self._place, path)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copyfile(self._cached(digest), target)
                os.chmod(target, mode)
                os.utime(self._cached(digest))
            for path, link in self._links:
                target = os.path.join(self._place, path)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                if os.path.lexists(target):
                    os.unlink(target)
                os.symlink(link, target)
            self._forget_old()
        except OSError as error:
            return f"{error.filename or self._place}: {error.strerror}"
        return ""

    def _forget_old(self) -> None:
        for entry in os.scandir(self._cache):
            if entry.stat().st_mtime < time.time() - _MONTH:
                os.unlink(entry.path)


def _hash_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            data = file.read(1 << 20)
            if not data:
                return digest.hexdigest()
            digest.update(data)


def _inside(path: str) -> str:
    normal = os.path.normpath(path)
    if os.path.isabs(normal) or normal.split(os.sep)[0] == os.pardir:
        raise ValueError(f"{path!r} leads out of the run's directory")
    return normal


def _hash(text: str) -> str:
    if len(text) != 64 or not _HEXADECIMAL.issuperset(text):
        raise ValueError(f"{text!r} is no SHA-256")
    return text
