"""The user's code for hosts: its files, its copy in the run's directory, uploads.

Hosts that need the code later get what the others got, even if it was edited since. An agent is offered all files
by hash, and sent what it lacks.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch import private_files
from tflaunch.agents.calls import Begin
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.features.uploads import Piece, Upload, pieces_of, read_wanted
from tflaunch.plan.model import FUNCTION_DIRECTORY, Plan, SyncPlan
from tflaunch_worker import wire
from tflaunch_worker.features.file_parts import hash_file, leads_through
from tflaunch_worker.function import SEARCHED

_MOST_FILES = 50_000  # the list of their hashes must fit into one message
DIRECTORY = "code"
"""The directory of the copies, in that of a run."""
MOST_COPIED = 16 << 20
"""Bytes of a run's copies: programs are small, and data next to them would fill the disk with each run."""

_NAME = "code.json"  # the file that says what the code has, and where its contents are
_OFFERED_AT_ONCE = 200  # files, which fit into one message even with the longest paths
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def find_code(plan: Plan, run: Path | None) -> Code:
    """Return the code of a plan with ``sync``, from the run's directory if kept there.

    Raises:
        TflaunchError: a path does not exist or cannot be read, or there are too many files.
    """
    assert plan.sync is not None
    kept = None if run is None else read_copy(run)
    return kept or gather(plan.sync, None if plan.function is None else Path(plan.function))


def gather(sync: SyncPlan, function: Path | None = None) -> Code:
    """Return the files of a spec's ``sync``, and those in the directory of a function.

    Raises:
        TflaunchError: a path does not exist or cannot be read, or there are too many files.
    """
    root = Path(sync.directory)
    real_root = os.path.realpath(root)
    exclude = [pattern.rstrip("/") for pattern in sync.exclude]
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
        for path in _walk(root, start, exclude):
            relative = path.relative_to(root).as_posix()
            if _kind(path) == "directory" or (path.is_symlink() and not _is_below(real_root, path)):
                links[relative] = _target(root, path)
            else:
                files[relative] = _file(path, relative)
            if len(files) + len(links) > _MOST_FILES:
                message = f"sync.paths: more than {_MOST_FILES} files; name fewer paths, or exclude some"
                raise TflaunchError(message, EXIT_USAGE)
    for inner in [*files, *links]:
        if parent := leads_through(inner, links):
            message = f"sync.paths: {inner} lies behind the link {parent}; name only one of them"
            raise TflaunchError(message, EXIT_USAGE)
    if function is not None:
        files |= _in_function(function)
    return Code(root, tuple(files.values()), tuple(links.items()))


def _in_function(directory: Path) -> dict[str, File]:
    found = {}
    for source in directory.rglob("*"):
        path = f"{FUNCTION_DIRECTORY}/{source.relative_to(directory)}"
        if source.is_file() and source.name != SEARCHED:
            found[path] = _file(source, path)._replace(source=source)
    return found


def _cannot(path: Path, error: OSError) -> TflaunchError:
    return TflaunchError(f"sync.paths: {path}: {error.strerror}; exclude it?", EXIT_USAGE)


def _walk(root: Path, start: Path, exclude: Sequence[str]) -> Iterator[Path]:
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path != root and _is_excluded(path.relative_to(root).as_posix(), exclude):
            continue
        kind = _kind(path)
        if kind == "directory" and (path == root or not path.is_symlink()):
            try:
                waiting += [path / name for name in sorted(os.listdir(path), reverse=True)]
            except OSError as error:
                raise _cannot(path, error) from None
        elif kind in ("directory", "file"):
            yield path


def _kind(path: Path) -> str | None:
    """Return "directory", "file" or "other"; None for a missing file or link target."""
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
    """Return whether a path's resolved target is in the code: only that may be copied."""
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
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            size, sha256 = hash_file(file)
    except OSError as error:
        raise _cannot(path, error) from None
    return File(relative, mode, sha256, size)


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
    """Files, and ``links`` to directories or to the outside, each as (path, target)."""

    directory: Path
    files: tuple[File, ...]
    links: tuple[tuple[str, str], ...]

    def offers(self) -> Iterator[Piece]:
        """Yield the offers of all files; each is answered, so a slow link is never silent."""
        end = max(len(self.files), len(self.links), 1)
        for start in range(0, end, _OFFERED_AT_ONCE):
            some = slice(start, start + _OFFERED_AT_ONCE)
            files = [(file.path, file.mode, file.sha256) for file in self.files[some]]
            about = {"is_first": start == 0, "is_last": start + _OFFERED_AT_ONCE >= end}
            yield Piece({**about, "files": files, "links": self.links[some]})

    def parts(self, wanted: Iterable[tuple[str, int]]) -> Iterator[Piece]:
        """Yield the missing parts of contents; ``wanted``: hashes, and bytes on the host.

        The agent detects other content than what was offered.

        Raises:
            OSError: a file can no longer be read.
        """
        files = {file.sha256: file for file in self.files}
        for sha256, offset in wanted:
            yield from pieces_of(self.source_of(files[sha256]), sha256, files[sha256].size, offset)

    def upload(self, begin: Begin, failed: Callable[[str], None]) -> Callable[[], None]:
        """Offer all files to an agent, and send what it lacks; return what stops it."""
        return _CodeUpload(self, begin, failed).stop

    def keep(self, run: Path) -> Code:
        """Copy the code to a run's directory; return the code with its contents there.

        The largest files beyond `MOST_COPIED`, files that cannot be copied and those that change during it are still
        read where they are. Code that comes from there already is returned as it is.
        """
        if self.directory == run / DIRECTORY:
            return self
        copied: set[str] = set()
        room = MOST_COPIED
        for file in sorted(self.files, key=lambda file: file.size):
            room -= file.size
            if room < 0:
                break
            if file.source is None and _copy(self.source_of(file), file, run / DIRECTORY / file.path):
                copied.add(file.path)
        files = [file if file.path in copied else file._replace(source=self.source_of(file)) for file in self.files]
        kept = Code(run / DIRECTORY, tuple(files), self.links)
        try:
            _describe(kept, run)
        except OSError:
            return self  # the disk is full, which the journal will tell
        return kept

    def export(self, run: Path) -> list[tuple[Path, str]]:
        """Describe a full copy of the code for a run; return files and their paths in it."""
        _describe(self._replace(files=tuple(file._replace(source=None) for file in self.files)), run)
        return [(self.source_of(file), f"{DIRECTORY}/{file.path}") for file in self.files]

    def source_of(self, file: File) -> Path:
        """Return where the content of a file is."""
        return file.source or self.directory / file.path


class _CodeUpload:
    """An upload of the user's code to one agent: an offer, then what is missing there."""

    def __init__(self, code: Code, begin: Begin, failed: Callable[[str], None]) -> None:
        self._code = code
        self._begin = begin
        self._failed = failed
        self._send("offer_files", code.offers(), self._offered)

    def stop(self) -> None:
        """Send nothing any more."""
        self._upload.stop()

    def _send(self, kind: str, pieces: Iterator[Piece], done: Callable[[dict[str, Any], str], None]) -> None:
        self._upload = Upload(self._begin, kind, pieces, done)
        self._upload.send()

    def _offered(self, answer: dict[str, Any], problem: str) -> None:
        sizes = {file.sha256: file.size for file in self._code.files}
        parts = self._code.parts(read_wanted(answer, "wanted", sizes).items())
        self._send("write_file", parts, self._sent)

    def _sent(self, answer: dict[str, Any], problem: str) -> None:
        if problem:
            self._failed(problem)


def _describe(code: Code, run: Path) -> None:
    files = [(*file[:4], None if file.source is None else str(file.source)) for file in code.files]
    private_files.write_text(run / _NAME, json.dumps({"files": files, "links": code.links}))


def read_copy(run: Path) -> Code | None:
    """Return the code kept in a run's directory; None if it is missing or incomplete."""
    try:
        found = wire.parse((run / _NAME).read_bytes())
        files = tuple(
            File(path, mode, sha256, size, None if source is None else Path(source))
            for path, mode, sha256, size, source in found["files"]
        )
        links = tuple((path, target) for path, target in found["links"])
    except (OSError, ValueError, LookupError, TypeError):
        return None  # for instance, its disk was full
    return Code(run / DIRECTORY, files, links)


def _copy(source: Path, file: File, target: Path) -> bool:
    """Copy a file; return whether the copy has the content that its hash promises."""
    has_all = False
    with suppress(OSError):  # it is read where it is, and so are errors
        private_files.make_directories(target.parent)
        with source.open("rb") as original, open(os.open(target, _FLAGS, 0o600), "wb") as copy:
            has_all = hash_file(original, copy)[1] == file.sha256
    if not has_all:
        with suppress(OSError):  # its directory could not be created
            target.unlink(missing_ok=True)
    return has_all
