"""Read the logs of a run's tasks, merged by the time at which their lines were written."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tflaunch.store.log_line import Line
from tflaunch.store.log_writer import parse_mark, path_of, times_of
from tflaunch.store.run_dir import RunDirectory
from tflaunch.store.task_log_reader import OneLog


class LogReader:
    """Reads the logs of a run, which may be live."""

    def __init__(self, directory: Path, logs: Path, tasks: Sequence[str]) -> None:
        """Prepare to read.

        Args:
            directory: the run's directory.
            logs: the directory of its logs.
            tasks: the tasks whose logs to read; lines with the same time are returned in this order.
        """
        run = RunDirectory.existing(directory, logs)
        self._logs = {task: OneLog(task, path_of(logs, task), times_of(run.times, task)) for task in tasks}
        self._marks = run.marks
        self._marks_read = 0
        self._mark_lines = 0

    def read(self, since: float | None = None, attempt: int | None = None, tail: int | None = None) -> Iterator[Line]:
        """Return all complete lines written so far, merged by time.

        Args:
            since: return only lines written since this time, in seconds since the epoch.
            attempt: return only lines of this attempt, also in later calls.
            tail: return only this many of each task's last such lines.
        """
        self._read_marks()
        return _merged([log.read(since, attempt, tail) for log in self._logs.values()])

    def new_lines(self) -> Iterator[Line]:
        """Return the complete lines written since the last call of this or of `read`, merged by time."""
        self._read_marks()
        return _merged([log.new_lines() for log in self._logs.values()])

    def rest(self) -> Iterator[Line]:
        """Return the incomplete last lines; they count as read."""
        self._read_marks()
        return _merged([log.rest() for log in self._logs.values()])

    def _read_marks(self) -> None:
        """Read new marks, which are written before the output that they mark."""
        try:
            with self._marks.open("rb") as file:
                file.seek(self._marks_read)
                lines, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return
        self._marks_read += len(lines) + len(newline)
        for line in lines.split(b"\n") if newline else ():
            self._mark_lines += 1
            mark = parse_mark(self._marks, self._mark_lines, line)
            if mark.task in self._logs:
                self._logs[mark.task].add_mark(mark)


def _merged(logs: Iterable[Iterable[Line]]) -> Iterator[Line]:
    return heapq.merge(*logs, key=lambda line: line.time)
