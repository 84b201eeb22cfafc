"""The output of all tasks on its way to their logs and to the screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tflaunch import descriptors
from tflaunch.agents.output import Times
from tflaunch.mailbox import Mailbox
from tflaunch.store.log_line import Kept
from tflaunch.store.log_writer import Marks, TaskLog, missing, path_of, times_of


class OutputScreen(Protocol):
    """Shows output of tasks, and never waits for a reader."""

    def show(self, task: str, data: bytes, kept: Kept | None) -> None:
        """Show output as it came; ``kept`` is where its log has it, None if there was no room for it."""

    def finish(self, task: str) -> None:
        """Show what a task wrote without ending its line."""


class LogSink:
    """Keeps each task's log and shows it (the `OutputWriter` of a session)."""

    def __init__(self, directory: Path, marks: Marks, times: Path, screen: OutputScreen, mailbox: Mailbox) -> None:
        """Prepare to keep logs.

        Args:
            directory: where they are.
            marks: holds where in them the attempts' own words are.
            times: the directory for the indices of when their words were written.
            screen: shows the words.
            mailbox: calls back, and tells the time.
        """
        descriptors.raise_limit()
        self._directory = directory
        self._marks = marks
        self._times = times
        self._screen = screen
        self._mailbox = mailbox
        self._changed: Callable[[], None] = lambda: None
        self._logs: dict[str, TaskLog] = {}
        self._open_attempts: dict[str, set[int]] = {}

    def tell_change(self, changed: Callable[[], None]) -> None:
        """Have ``changed`` called whenever a log has grown."""
        self._changed = changed

    def begin(self, task: str, attempt: int) -> None:
        """An attempt of a task is about to start."""
        self._open_attempts.setdefault(task, set()).add(attempt)
        if task not in self._logs:
            self._logs[task] = TaskLog(task, path_of(self._directory, task), self._marks, times_of(self._times, task))

    def kept(self, task: str, attempt: int) -> int | None:
        """Return how many bytes of an attempt an earlier supervisor has kept, None when there was none."""
        mark = self._marks.of_earlier(task)
        if mark is None or mark.attempt != attempt or task not in self._logs:
            return None
        return mark.offset + max(self._logs[task].first_size - mark.at, 0)

    def write(self, task: str, attempt: int, data: bytes, times: Times, done: Callable[[], None]) -> None:
        """Keep and show output of a task. It is done when it is in the log: a reader may take its time."""
        dated = [(position, self._wall(moment)) for position, moment in times]
        kept = self._log_of(task, attempt, dated[0][1]).append(data, dated)
        done()
        self._screen.show(task, data, kept)
        self._changed()

    def lose(self, task: str, attempt: int, size: int) -> None:
        """State a gap: output that its host could not keep."""
        self._log_of(task, attempt, self._now()).lose(size, missing(size), self._now())

    def end(self, task: str, attempt: int) -> None:
        """An attempt has said its last word."""
        self._log_of(task, attempt, self._now())
        self._screen.finish(task)
        self._close(task, attempt)

    def _close(self, task: str, attempt: int) -> None:
        attempts = self._open_attempts.get(task, set())
        attempts.discard(attempt)
        if not attempts:
            self._open_attempts.pop(task, None)

    def _log_of(self, task: str, attempt: int, moment: float) -> TaskLog:
        """Return the task's log, with a marked line where a new attempt begins to speak, at ``moment``."""
        log = self._logs[task]
        if attempt > log.attempt:
            log.begin_attempt(attempt, f"{task} attempt {attempt}", moment)
        return log

    def _now(self) -> float:
        return self._wall(self._mailbox.now())

    def _wall(self, moment: float) -> float:
        """Return a moment of our monotonic clock, which is not to come, in seconds since the epoch."""
        now = self._mailbox.now()
        return time.time() - now + min(moment, now)

    def abandon(self, task: str) -> None:
        """Expect nothing more of a task: its host is lost, and what it could not say any more with it."""
        for attempt in sorted(self._open_attempts.get(task, ())):
            log = self._log_of(task, attempt, self._now())
            log.lose(0, "the end of this output may be missing: its host was lost", self._now())
            self._close(task, attempt)

    def leave_to_others(self) -> None:
        """Expect nothing more of any task: another supervisor hears them."""
        self._open_attempts.clear()

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
        for task in list(self._open_attempts):
            self.abandon(task)
        for log in self._logs.values():
            log.close()
        self._marks.close()
