"""Walk and remove tasks' directories, however deep, and whatever links they hold.

A walk keeps one directory open and goes up by its "..": neither recursion, which Python limits to 1,000 calls (as does
`shutil.rmtree` before 3.13, and `os.walk` before 3.12), nor the 4,096 bytes of a path are in its way, and no link that
replaces a directory during the walk leads it out.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Callable, Iterator, List, Tuple

_Identity = Tuple[int, int]
_Names = List[Tuple[str, bool]]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_O_PATH = getattr(os, "O_PATH", 0)


class Entry:
    """A file, link or directory (after its content) of a walk; valid until the next.

    ``directory``: a descriptor of the directory that it is in; ``error``: why a directory was not searched, if so.
    """

    def __init__(self, directory: int, parents: list[str], name: str, is_directory: bool) -> None:
        self.directory = directory
        self.name = name
        self.is_directory = is_directory
        self.error: OSError | None = None
        self._parents = parents

    @property
    def path(self) -> str:
        """Its path below the directory where the walk began."""
        return "/".join((*self._parents, self.name))

    @property
    def depth(self) -> int:
        """How many directories it is in, without that where the walk began."""
        return len(self._parents)

    def status(self) -> os.stat_result:
        """Return its status, without following a link; raise `OSError` if it is gone."""
        return os.lstat(self.name, dir_fd=self.directory)


def walk(top: str, enters: Callable[[Entry], bool] | None = None) -> Iterator[Entry]:
    """Yield what is below a directory, by name.

    Args:
        top: the directory, or a link to it.
        enters: called with each directory before it is searched; returns whether it is; None to search all.

    Raises:
        OSError: ``top`` cannot be searched, or a directory was moved away during the walk.
    """
    here = os.open(top, _DIRECTORY)
    parents: list[str] = []
    try:
        levels = [(_identity(here), iter(_names(here)))]
        while levels:
            name, is_directory = next(levels[-1][1], ("", False))
            if name:
                entry = Entry(here, parents, name, is_directory)
                below = _enter(entry) if is_directory and (enters is None or enters(entry)) else None
                if below is None:
                    yield entry
                    continue
                os.close(here)
                here = below[0]
                parents.append(name)
                levels.append((_identity(here), iter(below[1])))
                continue
            levels.pop()
            if levels:
                above = _above(here, levels[-1][0])
                os.close(here)
                here = above
                yield Entry(here, parents, parents.pop(), is_directory=True)
    finally:
        os.close(here)


def _enter(entry: Entry) -> tuple[int, _Names] | None:
    """Open and list a directory; None and ``entry.error`` if it or its ".." fails."""
    try:
        below = os.open(entry.name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=entry.directory)
    except OSError as error:
        entry.error = error
        return None
    try:
        os.close(_above(below, _identity(entry.directory)))
        return below, _names(below)
    except OSError as error:
        os.close(below)
        entry.error = error
        return None


def _above(here: int, identity: _Identity) -> int:
    """Open the directory above one, which must be this; else raise `OSError`."""
    above = os.open("..", _DIRECTORY, dir_fd=here)
    if _identity(above) != identity:
        os.close(above)
        raise OSError(errno.ESTALE, "it was moved while it was searched")
    return above


def _names(directory: int) -> _Names:
    with os.scandir(directory) as entries:
        return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)


def _identity(descriptor: int) -> _Identity:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def make_writable(name: str, directory: int | None = None) -> bool:
    """Give a directory's owner all rights, which a task may have removed; return True.

    ``name`` is in a directory with this descriptor, or a path.
    """
    try:
        if stat.S_IMODE(os.lstat(name, dir_fd=directory).st_mode) & stat.S_IRWXU != stat.S_IRWXU:
            found = os.open(name, _O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                os.chmod(f"/proc/self/fd/{found}", stat.S_IRWXU)
            finally:
                os.close(found)
    except OSError:
        pass  # it is another user's, which is noticed when it is searched
    return True


def remove_tree(path: str) -> OSError | None:
    """Remove a file, link or tree as far as possible; return the first error.

    The error names the file. That there is nothing is none.
    """
    failure: OSError | None = None
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return None
        make_writable(path)
        for entry in walk(path, lambda entry: make_writable(entry.name, entry.directory)):
            try:
                (os.rmdir if entry.is_directory else os.unlink)(entry.name, dir_fd=entry.directory)
            except OSError as error:
                if failure is None and error.errno != errno.ENOENT:
                    failure = entry.error or error
                    failure.filename = os.path.join(path, entry.path)
        if failure is None:
            os.rmdir(path)
    except FileNotFoundError:
        return failure
    except OSError as error:
        failure = failure or error
        failure.filename = failure.filename or path
    return failure
