"""Store the files that tasks leave, one directory per attempt."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from tflaunch import private_files

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class LeftFile(NamedTuple):
    """A file that an attempt of a task has left under a name."""

    task: str
    attempt: int
    name: str


class LeftFileStore:
    """Stores files in a directory; a complete one gets its name."""

    def __init__(self, directory: Path) -> None:
        """Store files below ``directory``, which is created for the first one."""
        self._directory = directory
        self._trouble: list[str] = []

    def received(self, file: LeftFile) -> int | None:
        """Return how many bytes of a file are stored, None if all are."""
        path = path_of(self._directory, *file)
        if path.exists():
            return None
        try:
            return _incomplete(path).stat().st_size
        except OSError:
            return 0  # there is none; any other obstacle is met by `append`

    def append(self, file: LeftFile, data: bytes, *, is_last: bool) -> bool:
        """Store the next bytes of a file; return whether there was room for them."""
        path = path_of(self._directory, *file)
        try:
            private_files.make_directories(path.parent)
            descriptor = os.open(_incomplete(path), _FLAGS, 0o600)
            with open(descriptor, "wb") as stored:
                stored.write(data)
            if is_last:
                _incomplete(path).rename(path)
        except OSError as error:
            self._trouble.append(f"{path} could not be written: {error.strerror}")
            return False
        return True

    def trouble(self) -> list[str]:
        """Return a sentence for each file that could not be stored."""
        return self._trouble


def path_of(directory: Path, task: str, attempt: int, name: str) -> Path:
    """Return where a file that an attempt has left is stored."""
    return directory / f"{task.replace(':', '-')}-{attempt}" / name


def _incomplete(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")
