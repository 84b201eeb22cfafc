"""The user's code that is to be on every host: which files, and their bytes, in parts."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.plan import SyncPlan

PART = 64 * 1024
"""Bytes of a file in one frame."""

_MOST_FILES = 50_000  # their list must fit into one message
_READ = 1024 * 1024


class File(NamedTuple):
    """A file: its path relative to the spec's directory, its permissions, its content's SHA-256."""

    path: str
    mode: int
    sha256: str


class Part(NamedTuple):
    """Some bytes of the content with a hash, from ``offset`` on."""

    sha256: str
    offset: int
    is_last: bool
    data: bytes


class Code(NamedTuple):
    """All that travels. ``links``: (path, target) of symbolic links to directories."""

    directory: Path
    files: tuple[File, ...]
    links: tuple[tuple[str, str], ...]

    def parts(self, wanted: Sequence[str]) -> Iterator[Part]:
        """Read the contents with these hashes.

        Raises:
            OSError: a file cannot be read any more.
        """
        paths = {file.sha256: file.path for file in self.files}
        for sha256 in wanted:
            yield from _parts_of(self.directory / paths[sha256], sha256)


def gather(sync: SyncPlan) -> Code:
    """Return the files that a spec's ``sync`` names.

    Raises:
        TflaunchError: a path is not there or cannot be read, or they are too many.
    """
    root = Path(sync.directory)
    files: dict[str, File] = {}
    links: dict[str, str] = {}
    for name in sync.paths:
        start = root / name
        if not os.path.lexists(start):
            raise TflaunchError(f"sync.paths: {start} does not exist", EXIT_USAGE)
        for path in _walk(root, start, sync.exclude):
            relative = path.relative_to(root).as_posix()
            if path.is_dir():
                links[relative] = os.readlink(path)
            else:
                files[relative] = _file(path, relative)
            if len(files) > _MOST_FILES:
                message = f"sync.paths: more than {_MOST_FILES} files; name fewer paths, or exclude some"
                raise TflaunchError(message, EXIT_USAGE)
    return Code(root, tuple(files.values()), tuple(links.items()))


def _walk(root: Path, start: Path, exclude: Sequence[str]) -> Iterator[Path]:
    """Every file below ``start``, and links to directories, without what is excluded."""
    if _is_excluded(start.relative_to(root).as_posix(), exclude):
        return
    if start.is_dir() and (start == root or not start.is_symlink()):
        try:
            names = sorted(os.listdir(start))
        except OSError as error:
            raise TflaunchError(f"sync.paths: {start}: {error.strerror}", EXIT_USAGE) from None
        for name in names:
            yield from _walk(root, start / name, exclude)
    elif start.is_dir() or start.is_file():
        yield start


def _is_excluded(relative: str, exclude: Sequence[str]) -> bool:
    name = relative.rpartition("/")[2]
    patterns = [pattern.rstrip("/") for pattern in exclude]
    return any(fnmatch.fnmatch(relative, pattern) or fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _file(path: Path, relative: str) -> File:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            while data := file.read(_READ):
                digest.update(data)
    except OSError as error:
        raise TflaunchError(f"sync.paths: {path}: {error.strerror}; exclude it?", EXIT_USAGE) from None
    return File(relative, mode, digest.hexdigest())


def _parts_of(path: Path, sha256: str) -> Iterator[Part]:
    with path.open("rb") as file:
        offset = 0
        data = file.read(PART)
        while True:
            following = file.read(PART)
            yield Part(sha256, offset, not following, data)
            if not following:
                return
            offset += len(data)
            data = following
