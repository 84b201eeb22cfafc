"""Store the files that tasks leave, one directory per attempt.

Each comes as the output of a source that is named ``TASK/NAME``.
"""

import os
from collections.abc import Callable
from pathlib import Path

from tflaunch import private_files
from tflaunch.store.log_sink import Times

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class LeftFileStore:
    """Stores files in a directory; a complete one gets its name."""

    def __init__(self, directory: Path) -> None:
        """Store files below ``directory``, which is created for the first one."""
        self._directory = directory
        self._trouble: list[str] = []
        self._incomplete: set[Path] = set()

    def kept(self, source: str, attempt: int) -> int:
        """Return how many bytes of a file are stored."""
        path = self._path_of(source, attempt)
        for stored in (path, _part(path)):
            if stored.exists():
                return stored.stat().st_size
        return 0  # any obstacle is met by `write`

    def write(self, source: str, attempt: int, data: bytes, times: Times, done: Callable[[], None]) -> None:
        """Store the next bytes of a file, and call ``done`` even if there was no room."""
        path = self._path_of(source, attempt)
        if path not in self._incomplete:
            try:
                private_files.make_directories(path.parent)
                with open(os.open(_part(path), _FLAGS, 0o600), "wb") as stored:
                    stored.write(data)
            except OSError as error:
                self._trouble.append(f"{path} could not be written: {error.strerror}")
                self._incomplete.add(path)
        done()

    def lose(self, source: str, attempt: int, size: int) -> None:
        """Give up a file if a part of it cannot be read any more."""
        self._incomplete.add(self._path_of(source, attempt))

    def end(self, source: str, attempt: int) -> None:
        """Give a file its name, unless a part of it is missing."""
        path = self._path_of(source, attempt)
        if not path.exists():  # an earlier supervisor may have got its end
            self.write(source, attempt, b"", [], lambda: None)
            if path not in self._incomplete:
                _part(path).rename(path)

    def trouble(self) -> list[str]:
        """Return a sentence for each file that could not be stored."""
        return self._trouble

    def _path_of(self, source: str, attempt: int) -> Path:
        task, _, name = source.partition("/")
        return path_of(self._directory, task, attempt, name)


def path_of(directory: Path, task: str, attempt: int, name: str) -> Path:
    """Return where a file that an attempt has left is stored."""
    return directory / f"{task.replace(':', '-')}-{attempt}" / name


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")
