"""The output of all tasks on its way to their logs and to the screen."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

from tflaunch.mailbox import Mailbox
from tflaunch.screen import Screen
from tflaunch.task_log import Marks, TaskLog, path_of


class TaskWords:
    """Keeps each task's log and shows it (the `Words` of a session)."""

    def __init__(self, directory: Path, marks: Marks, screen: Screen, mailbox: Mailbox) -> None:
        """Keep logs in ``directory``; ``marks`` holds where in them the attempts' own words are."""
        _raise_file_limit()
        self._directory = directory
        self._marks = marks
        self._screen = screen
        self._mailbox = mailbox
        self._logs: dict[str, TaskLog] = {}
        self._open_attempts: set[tuple[str, int]] = set()

    def begin(self, task: str, attempt: int) -> None:
        """An attempt of a task is about to start."""
        self._open_attempts.add((task, attempt))
        if task not in self._logs:
            self._logs[task] = TaskLog(task, path_of(self._directory, task), self._marks)

    def kept(self, task: str, attempt: int) -> int | None:
        """Return how many bytes of an attempt an earlier supervisor has kept, None when there was none."""
        mark = self._marks.of_earlier(task)
        if mark is None or mark.attempt != attempt or task not in self._logs:
            return None
        return mark.offset + max(self._logs[task].first_size - mark.at, 0)

    def write(self, task: str, attempt: int, data: bytes, done: Callable[[], None]) -> None:
        """Keep and show output of a task."""
        self._log_of(task, attempt).append(data)
        self._screen.show(task, data, lambda: self._mailbox.call(done))

    def lose(self, task: str, attempt: int, size: int) -> None:
        """State a gap: output that its host could not keep."""
        self._log_of(task, attempt).lose(size, f"{size} bytes of output are missing here: there was no room for them")

    def end(self, task: str, attempt: int) -> None:
        """An attempt has said its last word."""
        self._log_of(task, attempt)
        self._screen.finish(task)
        self._open_attempts.discard((task, attempt))

    def _log_of(self, task: str, attempt: int) -> TaskLog:
        """Return the task's log, with a marked line where a new attempt begins to speak."""
        log = self._logs[task]
        if attempt > log.attempt:
            log.begin_attempt(attempt, f"{task} attempt {attempt}")
        return log

    def abandon(self, task: str) -> None:
        """Expect nothing more of a task: its host is lost, and what it could not say any more with it."""
        for name, attempt in sorted(self._open_attempts):
            if name == task:
                self._log_of(name, attempt).lose(0, "the end of this output may be missing: its host was lost")
                self._open_attempts.discard((name, attempt))

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
        for task in {task for task, _ in self._open_attempts}:
            self.abandon(task)
        for log in self._logs.values():
            log.close()
        self._marks.close()


def _raise_file_limit() -> None:
    """Allow this process a log per task; agents were started before, and hand on the user's own limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
