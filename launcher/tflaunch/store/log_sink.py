"""Write the output of all tasks to their logs, and to what displays a run."""

import time
from collections.abc import Callable
from pathlib import Path

from tflaunch.explain.run_status import Status
from tflaunch.mailbox import Mailbox
from tflaunch.store.log_writer import Kept, Marks, TaskLog, missing, path_of, times_of
from tflaunch_worker import process_state

Times = list[tuple[int, float]]
"""When the output from a position on was read, in seconds of our monotonic clock."""


class OutputSink:
    """Receives a run's output and messages, such as a screen; this one shows nothing."""

    shows_output = False
    """Whether `show` displays the tasks' output to the user."""

    @property
    def is_live(self) -> bool:
        """Whether `update` has an effect."""
        return False

    def show(self, task: str, data: bytes, kept: Kept | None) -> None:
        """Show a task's output as received, without blocking.

        ``kept``: its location in the log; None if the disk is full.
        """

    def finish(self, task: str) -> None:
        """Show a task's incomplete last line, without blocking."""

    def update(self, status: Status) -> None:
        """Show the run's current status."""

    def say(self, message: str, is_failure: bool = False) -> None:
        """Show a message of tflaunch itself; the first line of a failure is highlighted."""

    def wait_until_written(self) -> None:
        """Block until the reader has taken everything."""

    def close(self, patience: float | None = None, limit: float | None = None) -> bool:
        """Wait until everything is written; return False on timeout.

        ``patience``: seconds to wait for a reader that takes nothing; ``limit``: in total; None for no limit.
        """
        return True


class LogSink:
    """Writes and shows each task's log."""

    def __init__(self, directory: Path, marks: Marks, times: Path, screen: OutputSink, mailbox: Mailbox) -> None:
        """Prepare to write logs into ``directory``, and their time indices into ``times``."""
        process_state.raise_file_limit()
        self._directory = directory
        self._marks = marks
        self._times = times
        self._screen = screen
        self._mailbox = mailbox
        self.tell_change: Callable[[], None] = lambda: None
        """Called whenever a log has grown."""
        self._logs: dict[str, TaskLog] = {}
        self._open_attempts: set[tuple[str, int]] = set()

    def begin(self, task: str, attempt: int) -> None:
        """Prepare for the output of an attempt that is about to start."""
        self._open_attempts.add((task, attempt))
        if task not in self._logs:
            self._logs[task] = TaskLog(task, path_of(self._directory, task), self._marks, times_of(self._times, task))

    def kept(self, task: str, attempt: int) -> int | None:
        """Return how many bytes an earlier supervisor stored, None without one.

        It may have stored none of what it has acknowledged, because the disk was full.
        """
        mark = self._marks.earlier.get(task)
        if mark is None or mark.attempt != attempt or task not in self._logs:
            return 0 if self._marks.has_earlier else None
        return mark.offset + max(self._logs[task].first_size - mark.at, 0)

    def write(self, task: str, attempt: int, data: bytes, times: Times, done: Callable[[], None]) -> None:
        """Store and show output; call ``done`` once logged, however slow the screen is."""
        dated = [(position, self._wall(moment)) for position, moment in times]
        kept = self._log_of(task, attempt, dated[0][1]).append(data, dated)
        done()
        self._screen.show(task, data, kept)
        self.tell_change()

    def lose(self, task: str, attempt: int, size: int) -> None:
        """Log a gap: output that the task's host could not store."""
        self._log_of(task, attempt, self._now()).lose(size, missing(size), self._now())

    def end(self, task: str, attempt: int) -> None:
        """Finish an attempt, which will write no more output."""
        self._log_of(task, attempt, self._now())
        self._screen.finish(task)
        self._open_attempts.discard((task, attempt))

    def _log_of(self, task: str, attempt: int, moment: float) -> TaskLog:
        """Return the task's log, with a header line if the attempt is new."""
        log = self._logs[task]
        if attempt > log.attempt:
            log.begin_attempt(attempt, moment)
        return log

    def _now(self) -> float:
        return self._wall(self._mailbox.now())

    def _wall(self, moment: float) -> float:
        """Return a time of our monotonic clock as seconds since the epoch."""
        now = self._mailbox.now()
        return time.time() - now + min(moment, now)

    def abandon(self, task: str, attempt: int) -> None:
        """Give up an attempt's output, unless it has ended: its host is lost."""
        if (task, attempt) in self._open_attempts:
            log = self._log_of(task, attempt, self._now())
            log.lose(0, "the end of this output may be missing: its host was lost", self._now())
            self._open_attempts.discard((task, attempt))

    def leave_to_others(self) -> None:
        """Stop waiting for output of any task: another supervisor has taken over."""
        self._open_attempts.clear()

    @property
    def is_complete(self) -> bool:
        """Whether all attempts that began have ended."""
        return not self._open_attempts

    def tail(self, task: str, lines: int) -> list[str]:
        """Return the last ``lines`` lines of a task's last attempt."""
        log = self._logs.get(task)
        return log.tail(lines) if log is not None else []

    def trouble(self) -> list[str]:
        """Return a sentence for each log that could not be written completely."""
        return [sentence for log in self._logs.values() if (sentence := log.trouble())]

    def close(self) -> None:
        """Close the logs."""
        for task, attempt in sorted(self._open_attempts):
            self.abandon(task, attempt)
        for log in self._logs.values():
            log.close()
        self._marks.close()
