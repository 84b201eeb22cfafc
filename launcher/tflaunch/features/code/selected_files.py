"""The files of a spec's ``sync``, and those of the function that tasks call."""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.features.code.user_code import Code, File, read_copy
from tflaunch.plan.model import FUNCTION_DIRECTORY, Plan, SyncPlan
from tflaunch_worker.function import SEARCHED

_MOST_FILES = 50_000  # the list of their hashes must fit into one message
_READ = 1024 * 1024


def find_code(plan: Plan, run: Path | None) -> Code:
    """Return the code of a plan with ``sync``, from the run's directory if kept there.

    Raises:
        TflaunchError: a path does not exist or cannot be read, or there are too many files.
    """
    assert plan.sync is not None
    kept = None if run is None else read_copy(run)
    return kept or gather(plan.sync, None if plan.function is None else Path(plan.function))


def gather(sync: SyncPlan, function: Path | None = None) -> Code:
    """Return the files selected by a spec's ``sync``, and those of a function.

    Args:
        sync: the selection.
        function: the directory of that function, None if the tasks run commands.

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


def _walk(root: Path, start: Path, exclude: Sequence[str]) -> Iterator[Path]:
    """Yield every file and link below ``start`` that is not excluded."""
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
