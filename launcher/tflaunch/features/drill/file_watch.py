"""Which files of a directory are written and read, when, and by which tasks.

The kernel tells it (inotify), so what a program does within TensorFlow is seen, too.
"""

import os
import stat
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tflaunch.features.drill.records import MOVED, READ, REMOVED, WRITTEN, FileEvent
from tflaunch_worker.linux import call_c

_ACCESS, _MODIFY, _MOVED_FROM, _MOVED_TO = 0x1, 0x2, 0x40, 0x80
_CREATE, _DELETE, _IS_DIRECTORY, _OVERFLOW = 0x100, 0x200, 0x40000000, 0x4000
_KINDS = {_ACCESS: READ, _MODIFY: WRITTEN, _MOVED_TO: MOVED, _DELETE: REMOVED, _MOVED_FROM: REMOVED}
_EVENT = struct.Struct("iIII")
_MOST_DIRECTORIES = 2000


class FileWatch:
    """Records the events of a directory and of those below it, until it is closed."""

    def __init__(self, directory: Path, pids: Callable[[], dict[str, int]]) -> None:
        """Begin to watch; ``pids`` returns those of the tasks.

        Raises:
            OSError: the kernel watches nothing more for this user (fs.inotify.max_user_instances).
        """
        self.events: list[FileEvent] = []
        self._root = os.fspath(directory)
        self._pids = pids
        self._paths: dict[int, str] = {}
        self._file = call_c("inotify_init1", os.O_CLOEXEC)
        self._add("")
        self._thread = threading.Thread(target=self._record, daemon=True, name="tflaunch drill files")
        self._thread.start()

    def close(self) -> None:
        """Stop watching; `events` has all that happened before."""
        marker = os.path.join(self._root, f".tflaunch-{os.getpid()}")
        with suppress(OSError), open(marker, "xb"):  # its event is the last one
            pass
        self._thread.join(timeout=10)
        with suppress(OSError):
            os.unlink(marker)
        os.close(self._file)

    def _add(self, path: str) -> None:
        """Watch a directory, and what has been made in it before that."""
        if len(self._paths) >= _MOST_DIRECTORIES:
            return
        place = os.path.join(self._root, path)
        mask = _ACCESS | _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
        with suppress(OSError):  # it is gone already
            self._paths[call_c("inotify_add_watch", self._file, os.fsencode(place), mask)] = path
            for entry in os.scandir(place):
                if entry.is_dir(follow_symlinks=False):
                    self._add(os.path.join(path, entry.name))
                elif time.time() - entry.stat(follow_symlinks=False).st_mtime < 1:
                    self._note(WRITTEN, os.path.join(path, entry.name))

    def _record(self) -> None:
        while True:
            data = os.read(self._file, 64 * 1024)
            while data:
                watch, mask, _, length = _EVENT.unpack_from(data)
                name = os.fsdecode(data[_EVENT.size : _EVENT.size + length].rstrip(b"\0"))
                data = data[_EVENT.size + length :]
                path = os.path.join(self._paths.get(watch, ""), name)
                if path == f".tflaunch-{os.getpid()}":
                    return
                if mask & _IS_DIRECTORY:
                    if mask & (_CREATE | _MOVED_TO):
                        self._add(path)
                elif not mask & _OVERFLOW:
                    for bit, kind in _KINDS.items():
                        if mask & bit:
                            self._note(kind, path)

    def _note(self, kind: str, path: str) -> None:
        tasks = self._writers(path) if kind == WRITTEN else frozenset()
        last = self.events[-1] if self.events else None
        if last is None or (last.kind, last.path, last.tasks) != (kind, path, tasks):
            self.events.append(FileEvent(time.time(), kind, path, tasks))

    def _writers(self, path: str) -> frozenset[str]:
        """Return the tasks that have a file open to write it; many short saves are missed."""
        with suppress(OSError):
            wanted = os.stat(os.path.join(self._root, path))
            return frozenset(task for task, pid in self._pids().items() if _writes(pid, wanted))
        return frozenset()


def _writes(pid: int, wanted: os.stat_result) -> bool:
    with suppress(OSError):
        for link in os.scandir(f"/proc/{pid}/fd"):  # its mode says for what the file was opened
            with suppress(OSError):
                if os.path.samestat(link.stat(), wanted) and link.stat(follow_symlinks=False).st_mode & stat.S_IWUSR:
                    return True
    return False
