"""Collect the user's code for all hosts, and read it in parts."""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tflaunch.agents.transfer import Piece
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.plan.model import FUNCTION_DIRECTORY, SyncPlan
from tflaunch_worker.function import SEARCHED

PART = 64 * 1024
"""Bytes of a file in one frame."""

_MOST_FILES = 50_000  # the list of their hashes must fit into one message
_OFFERED_AT_ONCE = 200  # files, which fit into one message even with the longest paths
_READ = 1024 * 1024


class File(NamedTuple):
    """A file: path on hosts, permissions, SHA-256 and size of its content.

    ``source``: where it is on this machine, None for a path relative to the spec's directory.
    """

    path: str
    mode: int
    sha256: str
    size: int
    source: Path | None = None


class Code(NamedTuple):
    """All that is sent. ``links``: (path, target) of symbolic links to directories or to the outside."""

    directory: Path
    files: tuple[File, ...]
    links: tuple[tuple[str, str], ...]

    def offers(self) -> Iterator[Piece]:
        """Yield what offers all files; each piece is answered, so that a slow link is never silent."""
        end = max(len(self.files), len(self.links), 1)
        for start in range(0, end, _OFFERED_AT_ONCE):
            some = slice(start, start + _OFFERED_AT_ONCE)
            files = [(file.path, file.mode, file.sha256) for file in self.files[some]]
            about = {"is_first": start == 0, "is_last": start + _OFFERED_AT_ONCE >= end}
            yield Piece({**about, "files": files, "links": self.links[some]})

    def parts(self, wanted: Iterable[tuple[str, int]]) -> Iterator[Piece]:
        """Yield the parts of contents, each given by its hash and the number of bytes already on the host.

        Raises:
            OSError: a file can no longer be read.
        """
        files = {file.sha256: file for file in self.files}
        for sha256, offset in wanted:
            file = files[sha256]
            yield from _parts_of(file.source or self.directory / file.path, file, offset)


def gather(sync: SyncPlan, function: Path | None = None) -> Code:
    """Return the files selected by a spec's ``sync``, and those of the function that the tasks call.

    Args:
        sync: the selection.
        function: the directory of that function, None if the tasks run commands.

    Raises:
        TflaunchError: a path does not exist or cannot be read, or there are too many files.
    """
    root = Path(sync.directory)
    real_root = os.path.realpath(root)
    files: dict[str, File] = {}
    links: dict[str, str] = {}
    for name in sync.paths:
        start = root / name
        if _kind(start) is None:
            raise TflaunchError(
                f"sync.paths: {start} does not exist; correct it: paths are relative to the spec's file", EXIT_USAGE
            )
        if not _is_below(real_root, start.parent if start != root else start):
            message = f"sync.paths: {start} lies behind a link that leads out of {root}; name a path inside"
            raise TflaunchError(message, EXIT_USAGE)
        for path in _walk(root, start, _patterns(sync.exclude)):
            relative = path.relative_to(root).as_posix()
            if _kind(path) == "directory" or (path.is_symlink() and not _is_below(real_root, path)):
                links[relative] = _target(root, path)
            else:
                files[relative] = _file(path, relative)
            if len(files) + len(links) > _MOST_FILES:
                message = f"sync.paths: more than {_MOST_FILES} files; name fewer paths, or exclude some"
                raise TflaunchError(message, EXIT_USAGE)
    _refuse_files_behind_links(files, links)
    if function is not None:
        files |= _in_function(function)
    return Code(root, tuple(files.values()), tuple(links.items()))


def _in_function(directory: Path) -> dict[str, File]:
    """Return the files of the function that the tasks call, by their paths on hosts."""
    found = {}
    for source in directory.rglob("*"):
        path = f"{FUNCTION_DIRECTORY}/{source.relative_to(directory)}"
        if source.is_file() and source.name != SEARCHED:
            found[path] = _file(source, path)._replace(source=source)
    return found


def _refuse_files_behind_links(files: Iterable[str], links: Collection[str]) -> None:
    for inner in [*files, *links]:
        for parent in PurePosixPath(inner).parents:
            if str(parent) in links:
                message = f"sync.paths: {inner} lies behind the link {parent}; name only one of them"
                raise TflaunchError(message, EXIT_USAGE)


def _cannot(path: Path, error: OSError) -> TflaunchError:
    return TflaunchError(f"sync.paths: {path}: {error.strerror}; exclude it?", EXIT_USAGE)


def _patterns(exclude: Sequence[str]) -> list[str]:
    return [pattern.rstrip("/") for pattern in exclude]


def _walk(root: Path, start: Path, exclude: Sequence[str]) -> Iterator[Path]:
    """Yield every file and link below ``start`` that is not excluded."""
    if start != root and _is_excluded(start.relative_to(root).as_posix(), exclude):
        return
    kind = _kind(start)
    if kind == "directory" and (start == root or not start.is_symlink()):
        try:
            names = sorted(os.listdir(start))
        except OSError as error:
            raise _cannot(start, error) from None
        for name in names:
            yield from _walk(root, start / name, exclude)
    elif kind in ("directory", "file"):
        yield start


def _kind(path: Path) -> str | None:
    """Return "directory", "file", or "other" for pipes etc.; None for a missing file or a dangling link."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise _cannot(path, error) from None
    if stat.S_ISDIR(mode):
        return "directory"
    return "file" if stat.S_ISREG(mode) else "other"


def _is_below(real_root: str, path: Path) -> bool:
    """Return whether a path with all links resolved is inside the code; only then may it be copied."""
    return os.path.commonpath([real_root, os.path.realpath(path)]) == real_root


def _target(root: Path, path: Path) -> str:
    """Return the target of a link on a host.

    A link to a path inside the code becomes relative, and so works there, too. A link to a path outside of it, relative
    or not, becomes absolute: there it leads to a shared file system, or nowhere.
    """
    try:
        target = os.path.normpath(path.parent / os.readlink(path))
    except OSError as error:
        raise _cannot(path, error) from None
    is_inside = os.path.commonpath([root, target]) == str(root)
    return os.path.relpath(target, path.parent) if is_inside else target


def _is_excluded(relative: str, exclude: Sequence[str]) -> bool:
    name = relative.rpartition("/")[2]
    return any(fnmatch.fnmatchcase(relative, pattern) or fnmatch.fnmatchcase(name, pattern) for pattern in exclude)


def _file(path: Path, relative: str) -> File:
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            while data := file.read(_READ):
                digest.update(data)
                size += len(data)
    except OSError as error:
        raise _cannot(path, error) from None
    return File(relative, mode, digest.hexdigest(), size)


def _parts_of(path: Path, file: File, offset: int) -> Iterator[Piece]:
    """Yield the parts of a file up to its recorded size; the agent detects if the file has changed."""
    with path.open("rb") as stream:
        stream.seek(offset)
        while True:
            data = stream.read(min(PART, file.size - offset))
            is_last = offset + len(data) >= file.size or not data
            yield Piece({"sha256": file.sha256, "offset": offset, "is_last": is_last}, data)
            if is_last:
                return
            offset += len(data)
