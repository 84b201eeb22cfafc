"""The output of all tasks on its way to their logs and to the screen."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

from tflaunch.mailbox import Mailbox
from tflaunch.screen import Screen

_TAIL_BYTES = 64 * 1024
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class TaskWords:
    """Keeps each task's log and shows it (the `Words` of a session)."""

    def __init__(self, directory: Path, screen: Screen, mailbox: Mailbox) -> None:
        _raise_file_limit()
        self._directory = directory
        self._screen = screen
        self._mailbox = mailbox
        self._logs: dict[str, _Log] = {}
        self._open_attempts: set[tuple[str, int]] = set()

    def begin(self, task: str, attempt: int) -> None:
        """An attempt of a task is about to start."""
        self._open_attempts.add((task, attempt))
        if task not in self._logs:
            self._logs[task] = _Log(self._directory / f"{task.replace(':', '-')}.log")

    def write(self, task: str, attempt: int, data: bytes, done: Callable[[], None]) -> None:
        """Keep and show output of a task."""
        self._log_of(task, attempt).append(data)
        self._screen.show(task, data, lambda: self._mailbox.call(done))

    def lose(self, task: str, attempt: int, size: int) -> None:
        """State a gap: output that its host could not keep."""
        self._log_of(task, attempt).mark(f"{size} bytes of output are missing here: the host had no room for them")

    def end(self, task: str, attempt: int) -> None:
        """An attempt has said its last word."""
        self._log_of(task, attempt)
        self._screen.finish(task)
        self._open_attempts.discard((task, attempt))

    def _log_of(self, task: str, attempt: int) -> _Log:
        """Return the task's log, with a marked line where a new attempt begins to speak."""
        log = self._logs[task]
        if attempt > log.attempt:
            log.begin_attempt(attempt, f"{task} attempt {attempt}")
        return log

    def abandon(self, task: str) -> None:
        """Expect nothing more of a task: its host is lost."""
        self._open_attempts = {(name, attempt) for name, attempt in self._open_attempts if name != task}

    @property
    def is_complete(self) -> bool:
        """Whether all that was ever begun has ended."""
        return not self._open_attempts

    def tail(self, task: str, lines: int) -> list[str]:
        """Return the last lines of a task's last attempt."""
        log = self._logs.get(task)
        return log.tail(lines) if log is not None else []

    def trouble(self) -> list[str]:
        """Return a sentence for each log that could not be kept."""
        return [sentence for log in self._logs.values() if (sentence := log.trouble())]

    def close(self) -> None:
        """Close the logs."""
        for log in self._logs.values():
            log.close()


def _raise_file_limit() -> None:
    """Allow this process a log per task; agents were started before, and hand on the user's own limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Log:
    """The log of one task: bytes as written, with marked lines of our own between attempts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, _FLAGS, 0o600)
        self._ends_line = True
        self._lost = 0
        self._attempt_start = os.fstat(self._file).st_size  # --log-dir may hold the words of an earlier run
        self.attempt = 0

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            self._lost += len(view)  # a full disk must not end the job
        if data:
            self._ends_line = data.endswith(b"\n")

    def begin_attempt(self, attempt: int, text: str) -> None:
        self.attempt = attempt
        self.mark(text)
        self._attempt_start = os.fstat(self._file).st_size

    def mark(self, text: str) -> None:
        start = b"" if self._ends_line else b"\n"
        self.append(start + f"---- tflaunch: {text} ----\n".encode())

    def tail(self, lines: int) -> list[str]:
        size = os.fstat(self._file).st_size
        data = os.pread(self._file, _TAIL_BYTES, max(self._attempt_start, size - _TAIL_BYTES))
        text = data.decode("utf-8", "replace").replace("\r", "\n")
        return [line for line in text.split("\n") if line.strip()][-lines:]

    def trouble(self) -> str:
        return f"{self._path}: {self._lost} bytes could not be written" if self._lost else ""

    def close(self) -> None:
        os.close(self._file)
