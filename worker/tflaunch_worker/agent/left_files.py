"""Send the launcher a task's left files: announce them, then send requested parts.

A task counts as gone only when the supervisor has released its files, so that neither a lost link nor another
supervisor loses one: they are announced over every link, and the supervisor requests what it lacks.
"""

from __future__ import annotations

import os
import stat
from typing import Any, Callable, Mapping

from tflaunch_worker.agent.calls import Call

PART = 256 * 1024
"""Maximum bytes of a file in one frame."""

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class LeftFile:
    """A file of an ended attempt that no process writes to any more."""

    def __init__(self, path: str, descriptor: int, size: int) -> None:
        self.size = size
        self._path = path
        self._descriptor = descriptor

    def read(self, offset: int) -> bytes:
        """Return a part of the file, empty if it can no longer be read."""
        try:
            return os.pread(self._descriptor, PART, offset)
        except OSError:
            return b""

    def remove(self) -> None:
        """Remove the file: the supervisor has it."""
        os.close(self._descriptor)
        forget_stale(self._path)


def find_left_file(path: str, most: int) -> LeftFile | None:
    """Return the regular file at ``path`` if it has at most ``most`` bytes, else None."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > most:
        os.close(descriptor)
        return None
    return LeftFile(path, descriptor, status.st_size)


def forget_stale(path: str) -> None:
    """Remove what an earlier attempt may have left at ``path``."""
    try:
        os.unlink(path)
    except OSError:
        pass  # there is none; or it is a directory, which is never sent


class LeftFiles:
    """The files of ended attempts that the supervisor has not released."""

    def __init__(self, find: Callable[[str, str, int], LeftFile | None]) -> None:
        """Keep no file yet; ``find`` returns a task's file by name, if small enough."""
        self._find = find
        self._watcher: Call | None = None
        self._wanted: dict[str, Mapping[str, int]] = {}
        self._left: dict[tuple[str, int], dict[str, LeftFile]] = {}
        self._released: dict[tuple[str, int], Callable[[], None]] = {}

    def want(self, task: str, files: Mapping[str, int]) -> None:
        """Send files of a task's next attempt: name to the maximum number of bytes."""
        self._wanted[task] = files

    def bring(self, task: str, attempt: int, released: Callable[[], None]) -> None:
        """Announce an attempt's files; call ``released`` when the supervisor has them all."""
        found = {name: self._find(task, name, most) for name, most in self._wanted.pop(task, {}).items()}
        left = {name: file for name, file in found.items() if file is not None}
        if not left:
            released()
            return
        self._left[(task, attempt)] = left
        self._released[(task, attempt)] = released
        self._announce(task, attempt)

    def watch(self, call: Call, message: Mapping[str, Any]) -> None:
        """Announce all files, and those that tasks leave from now on."""
        self._watcher = call
        for task, attempt in self._left:
            self._announce(task, attempt)

    def _announce(self, task: str, attempt: int) -> None:
        for name, file in self._left[(task, attempt)].items():
            if self._watcher is not None:
                self._watcher.tell(task=task, attempt=attempt, name=name, size=file.size)

    def read(self, call: Call, message: Mapping[str, Any]) -> None:
        """Answer with a part of a file, empty if the file is gone."""
        file = self._left.get((message["task"], message["attempt"]), {}).get(message["name"])
        call.answer(b"" if file is None else file.read(message["offset"]))

    def release(self, message: Mapping[str, Any]) -> None:
        """Remove a file that the supervisor has, or does without."""
        about = message["task"], message["attempt"]
        file = self._left.get(about, {}).pop(message["name"], None)
        if file is not None:
            file.remove()
            if not self._left[about]:
                self._finish(about)

    def give_up(self, task: str | None = None) -> None:
        """Stop waiting for the supervisor to take files of a task; of all by default."""
        for about in [about for about in self._left if task in (None, about[0])]:
            for file in self._left.get(about, {}).values():
                file.remove()
            self._finish(about)

    def _finish(self, about: tuple[str, int]) -> None:
        if self._left.pop(about, None) is not None:
            self._released.pop(about)()
