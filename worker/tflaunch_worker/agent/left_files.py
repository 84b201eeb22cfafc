"""Send the launcher a task's left files like its output: by offset, in a window.

A task counts as gone only when the supervisor has stored its files, so that neither a lost link nor another supervisor
loses one. The stream of a file is named by the task and the file: ``worker:0/outcome``.
"""

from __future__ import annotations

import os
import stat
from functools import partial
from typing import Callable, Mapping

from tflaunch_worker.agent.supervisor_link import SupervisorLink
from tflaunch_worker.agent.task_output import Gap, Spool, Stream

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class LeftFile(Spool):
    """A file of an ended attempt that no process writes to any more."""

    def __init__(self, path: str, descriptor: int, size: int) -> None:
        super().__init__(os.path.dirname(path))
        self.end = size
        self._path = path
        self._descriptor = descriptor

    def read(self, offset: int, size: int) -> bytes | Gap:
        """Return up to ``size`` bytes from ``offset`` on; what cannot be read is a gap."""
        try:
            data = os.pread(self._descriptor, min(size, self.end - offset), offset)
        except OSError:
            data = b""
        return data or Gap(offset, self.end - offset)

    def close(self) -> None:
        """Remove the file: the supervisor has it, or does without."""
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
    """The files of ended attempts that the supervisor has not stored."""

    def __init__(
        self, find: Callable[[str, str, int], Spool | None], link: SupervisorLink, now: Callable[[], float]
    ) -> None:
        """Keep no file yet; ``find`` returns a task's file by name, if small enough."""
        self._find = find
        self._link = link
        self._now = now
        self._wanted: dict[str, Mapping[str, int]] = {}
        self._left: dict[str, list[Stream]] = {}

    def want(self, task: str, files: Mapping[str, int]) -> None:
        """Send files of a task's next attempt: name to the maximum number of bytes."""
        self._wanted[task] = files

    def bring(self, task: str, attempt: int, stored: Callable[[], None]) -> None:
        """Send an attempt's files; call ``stored`` when the supervisor has them all."""
        wanted = self._wanted.pop(task, {})
        found = [(f"{task}/{name}", self._find(task, name, most)) for name, most in wanted.items()]
        left = [Stream(source, attempt, file, self._now) for source, file in found if file is not None]
        self._left[task] = left
        if not left:
            stored()

        def end(stream: Stream) -> None:
            left.remove(stream)
            if not left:
                stored()

        for stream in tuple(left):
            stream.closed = partial(end, stream)
            stream.finish()
            self._link.add(stream)
            self._link.has_output(stream)

    def give_up(self, task: str | None = None) -> None:
        """Stop waiting for the supervisor to store files of a task; of all by default."""
        for name in list(self._left) if task is None else [task]:
            for stream in list(self._left.get(name, ())):
                self._link.drop(stream)
