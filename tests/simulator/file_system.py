"""A machine's files in memory, and the calls of `os`, `open` and `shutil` that the real code makes on them.

Files take space on the machine's disk. Links are never followed: no program here leads a path through one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing_extensions import Self


class Disk:
    def __init__(self, wait: Callable[[float], None]) -> None:
        """Prepare a disk; ``wait`` lets whoever writes do nothing else for a number of seconds."""
        self.room = 1 << 40
        self.has_inodes = True
        self.seconds = 0.0  # that a write takes
        self._wait = wait

    def create(self) -> None:
        if not self.has_inodes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.take(1)

    def take(self, size: int) -> int:
        """Return for how many of these bytes there is space."""
        if self.seconds:
            self._wait(self.seconds)
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = min(size, self.room)
        self.room -= taken
        return taken


class Node:
    """A regular file, a directory, or a link to ``target``."""

    def __init__(self, kind: int, changed_at: float, mode: int = 0o600, target: str = "") -> None:
        self.kind = kind
        self.mode = mode
        self.target = target
        self.changed_at = changed_at
        self.content = bytearray()
        self.handles = 0
        self.is_linked = True


class Status(NamedTuple):
    st_mode: int
    st_size: int
    st_mtime: float
    st_uid: int
    st_nlink: int


class FileSystem:
    """The files of a machine; they are lost with its disk."""

    def __init__(self, disk: Disk, clock: Callable[[], float]) -> None:
        """Prepare an empty root directory; ``clock`` is the machine's wall clock."""
        self.disk = disk
        self.clock = clock
        self.nodes = {"/": Node(stat.S_IFDIR, 0.0, 0o700)}
        self.opened: dict[int, Node] = {}
        """The open files, by their descriptors."""
        self._next = 1 << 20  # no descriptor of a pipe or socket
        self._share: float | None = None
        self._death: BaseException | None = None

    def find(self, path: str | os.PathLike[str]) -> Node:
        text = _whole(path)
        if text not in self.nodes:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
        return self.nodes[text]

    def create(self, path: str | os.PathLike[str], kind: int, mode: int = 0o600, target: str = "") -> Node:
        text = _whole(path)
        if text in self.nodes:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), text)
        if self.find(os.path.dirname(text)).kind != stat.S_IFDIR:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), text)
        self.disk.create()
        node = self.nodes[text] = Node(kind, self.clock(), mode, target)
        return node

    def unlink(self, path: str | os.PathLike[str]) -> None:
        node = self.find(path)
        del self.nodes[_whole(path)]
        node.is_linked = False
        self._release(node)

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, in place of the file that had it."""
        node = self.find(source)
        replaced = self.nodes.get(_whole(target))
        del self.nodes[_whole(source)]
        self.nodes[_whole(target)] = node
        if replaced is not None:
            replaced.is_linked = False
            self._release(replaced)

    def make_directories(self, path: str | os.PathLike[str]) -> None:
        text = _whole(path)
        if text not in self.nodes:
            self.make_directories(os.path.dirname(text))
            self.create(text, stat.S_IFDIR, 0o700)

    def names(self, path: str) -> list[str]:
        self.find(path)
        text = _whole(path).rstrip("/")
        return [name.rpartition("/")[2] for name in self.nodes if name != "/" and name.rpartition("/")[0] == text]

    def below(self, path: str) -> dict[str, Node]:
        """Return all files below a directory, by their paths within it."""
        start = _whole(path).rstrip("/") + "/"
        return {name[len(start) :]: node for name, node in self.nodes.items() if name.startswith(start)}

    def open(self, node: Node) -> int:
        node.handles += 1
        self._next += 1
        self.opened[self._next] = node
        return self._next

    def close(self, descriptor: int) -> None:
        node = self.opened.pop(descriptor)
        node.handles -= 1
        self._release(node)

    def break_off(self, share: float | None, death: BaseException | None) -> None:
        """Write only this share of what is written next, and raise ``death`` then; never, if both are None."""
        self._share, self._death = share, death

    def write(self, node: Node, data: bytes, offset: int) -> int:
        """Write what there is space for; return how much."""
        if self._share is not None and self._death is not None:
            data, death = data[: int(self._share * len(data))], self._death
            self.break_off(None, None)
            self._write(node, data, offset)
            raise death
        return self._write(node, data, offset)

    def _write(self, node: Node, data: bytes, offset: int) -> int:
        content = node.content
        assert offset <= len(content)
        taken = self.disk.take(max(offset + len(data) - len(content), 0)) if offset + len(data) > len(content) else 0
        written = min(len(data), len(content) - offset + taken)
        content[offset : offset + written] = data[:written]
        node.changed_at = self.clock()
        return written

    def truncate(self, node: Node, size: int) -> None:
        self.disk.room += max(len(node.content) - size, 0)
        del node.content[size:]

    def status(self, node: Node) -> Status:
        size = len(node.content)
        return Status(node.kind | node.mode, size, node.changed_at, os.getuid(), int(node.is_linked))

    def _release(self, node: Node) -> None:
        if not node.is_linked and not node.handles:
            self.disk.room += len(node.content) + 1
            node.content = bytearray()


def _whole(path: str | os.PathLike[str]) -> str:
    return os.path.normpath(os.path.join("/", os.fspath(path)))


class OsCalls:
    """Replaces `os` for code whose files are in memory."""

    path = os.path
    fsencode = staticmethod(os.fsencode)
    strerror = staticmethod(os.strerror)
    getuid = staticmethod(os.getuid)
    sep, curdir, pardir = os.sep, os.curdir, os.pardir
    O_RDONLY, O_RDWR, O_CREAT, O_EXCL, O_APPEND = os.O_RDONLY, os.O_RDWR, os.O_CREAT, os.O_EXCL, os.O_APPEND
    O_CLOEXEC, O_NOFOLLOW = os.O_CLOEXEC, os.O_NOFOLLOW

    def __init__(self, here: Callable[[], FileSystem]) -> None:
        """Prepare calls; ``here`` returns the files of the machine whose code runs."""
        self._here = here

    def open(self, path: str | os.PathLike[str], flags: int, mode: int = 0o777) -> int:
        here = self._here()
        if flags & os.O_EXCL or (flags & os.O_CREAT and _whole(path) not in here.nodes):
            return here.open(here.create(path, stat.S_IFREG, mode))
        return here.open(here.find(path))

    def close(self, descriptor: int) -> None:
        self._here().close(descriptor)

    def write(self, descriptor: int, data: bytes) -> int:
        """Append to a file: those here are opened with O_APPEND."""
        node = self._here().opened[descriptor]
        return self._here().write(node, data, len(node.content))

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        return self._here().write(self._here().opened[descriptor], data, offset)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        return bytes(self._here().opened[descriptor].content[offset : offset + size])

    def ftruncate(self, descriptor: int, size: int) -> None:
        self._here().truncate(self._here().opened[descriptor], size)

    def fstat(self, descriptor: int) -> Status:
        return self._here().status(self._here().opened[descriptor])

    def fchmod(self, descriptor: int, mode: int) -> None:
        self._here().opened[descriptor].mode = mode

    def lstat(self, path: str) -> Status:
        return self._here().status(self._here().find(path))

    def utime(self, path: str) -> None:
        self._here().find(path).changed_at = self._here().clock()

    def unlink(self, path: str) -> None:
        self._here().unlink(path)

    def replace(self, source: str, target: str) -> None:
        self._here().rename(source, target)

    def symlink(self, target: str, path: str) -> None:
        self._here().create(path, stat.S_IFLNK, 0o777, target)

    def mkdir(self, path: str, mode: int) -> None:
        self._here().create(path, stat.S_IFDIR, mode)

    def makedirs(self, path: str, mode: int, exist_ok: bool) -> None:
        self._here().make_directories(path)

    def listdir(self, path: str) -> list[str]:
        return self._here().names(path)

    def open_stream(self, path: str, mode: str, buffering: int = -1) -> Stream:
        flags = {"a": os.O_CREAT, "x": os.O_CREAT | os.O_EXCL}.get(mode[0], 0)
        return Stream(self, self.open(path, flags, 0o600), is_whole=buffering != 0)


class Stream:
    def __init__(self, calls: OsCalls, descriptor: int, *, is_whole: bool) -> None:
        """Wrap a descriptor; with ``is_whole``, `write` writes everything."""
        self._calls = calls
        self._descriptor = descriptor
        self._is_whole = is_whole
        self._position = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._calls.close(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def seek(self, position: int) -> None:
        self._position = position

    def read(self, size: int = 1 << 30) -> bytes:
        data = self._calls.pread(self._descriptor, size, self._position)
        self._position += len(data)
        return data

    def write(self, data: bytes) -> int:
        written = self._calls.write(self._descriptor, data)
        if self._is_whole and written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written


class TreeCalls:
    def __init__(self, here: Callable[[], FileSystem]) -> None:
        self._here = here

    def remove_tree(self, path: str) -> None:
        here = self._here()
        for name in [*here.below(path)]:
            here.unlink(os.path.join(path, name))
        if _whole(path) in here.nodes:
            here.unlink(path)


class SimPath:
    """Replaces `Path` where files are in memory: the part that the store uses."""

    def __init__(self, text: str, here: FileSystem) -> None:
        self._text = text
        self._here = here

    def __truediv__(self, name: str) -> SimPath:
        return SimPath(f"{self._text}/{name}", self._here)

    def __fspath__(self) -> str:
        return self._text

    def __str__(self) -> str:
        return self._text

    @property
    def name(self) -> str:
        return os.path.basename(self._text)

    @property
    def parent(self) -> SimPath:
        return SimPath(os.path.dirname(self._text), self._here)

    def exists(self) -> bool:
        return _whole(self._text) in self._here.nodes

    def stat(self) -> Status:
        return self._here.status(self._here.find(self._text))

    def mkdir(self, mode: int, exist_ok: bool) -> None:
        if not (exist_ok and self.exists()):
            self._here.create(self._text, stat.S_IFDIR, mode)

    def open(self, mode: str, buffering: int = -1) -> Stream:
        return OsCalls(lambda: self._here).open_stream(self._text, mode, buffering)

    def read_bytes(self) -> bytes:
        return bytes(self._here.find(self._text).content)


def fill(here: FileSystem, directory: str, contents: Iterable[tuple[str, bytes]]) -> None:
    for path, content in contents:
        whole = os.path.join(directory, path)
        here.make_directories(os.path.dirname(whole))
        here.write(here.create(whole, stat.S_IFREG), content, 0)
