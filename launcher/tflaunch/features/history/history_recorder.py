"""Record what the tasks of a run report and use over time, in a bounded file."""

import json
import os
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path

from tflaunch.clusterspec.values import MAX_TASKS
from tflaunch.core.job_state import Job, Phase
from tflaunch.explain.run_status import Status, TaskStatus
from tflaunch.runtime.loop import Run
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch.store.history import MOST_BYTES, Figures, Moment, lines_in, moments_in
from tflaunch.store.run_dir import HISTORY_NAME

_SHORTEST = 2.0  # seconds between two moments at first
_MOST = 1999  # moments
_LONGEST_LINE = MOST_BYTES // 200  # so that a curve of a run of many tasks has 100 points, too


class HistoryWriter:
    """The only writer of a run's history; a new one continues the file.

    When there are too many moments, or the file is too large, every other moment is dropped, and from then on they are
    taken half as often: so that a curve of a run of any length has a bounded number of points, evenly spaced. Of a run
    of many tasks, only the first ones have curves.
    """

    def __init__(self, directory: Path) -> None:
        self.interval = _SHORTEST
        """Seconds between two moments."""
        self._path = directory / HISTORY_NAME
        self._lines = lines_in(directory)
        self._is_whole = False
        self._most_tasks = MAX_TASKS
        times = [moment.time for moment in moments_in(self._lines)]
        while len(times) > 1 and self.interval < (times[-1] - times[0]) / len(times):
            self.interval *= 2

    def add(self, moment: Moment) -> None:
        """Write a moment.

        Raises:
            OSError: the disk is full; the moment is written with a later one.
        """
        line = _line(moment, self._most_tasks)
        if len(line) > _LONGEST_LINE:
            count = min(len(moment.tasks), self._most_tasks)
            self._most_tasks = max(count * _LONGEST_LINE // len(line), 1)
            line = _line(moment, self._most_tasks)
        self._lines.append(line)
        is_odd = len(self._lines) % 2  # then the last one stays, and so does the interval before the next one
        if is_odd and (len(self._lines) > _MOST or sum(map(len, self._lines)) > MOST_BYTES):
            del self._lines[1::2]
            self.interval *= 2
            self._is_whole = False
        if self._is_whole:
            self._is_whole = False
            with open(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), "wb") as file:
                file.write(line)
        else:
            new = self._path.with_suffix(".new")
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                file.writelines(self._lines)
            new.replace(self._path)
        self._is_whole = True


def _line(moment: Moment, most: int) -> bytes:
    first = islice(moment.tasks.items(), most)
    tasks = {task: figures._replace(metrics=dict(figures.metrics)) for task, figures in first}
    return json.dumps([round(moment.time, 1), tasks], separators=(",", ":")).encode() + b"\n"


class HistoryRecorder(Watcher):
    """Records a moment every few seconds, and the last reports at the end."""

    def __init__(self, supervision: Supervision) -> None:
        super().__init__(supervision)
        self._mailbox = supervision.mailbox
        self._writer: HistoryWriter | None = None  # a run that ends at once needs none

    def watch(self, job: Job, now: float) -> None:
        """Begin when the tasks run."""
        self.job = job
        if self._writer is None and job.phase is Phase.RUNNING:
            self._writer = HistoryWriter(self.supervision.config.directory.path)
            self._mailbox.call_at(now + self._writer.interval, self._measure)

    def finish(self, run: Run) -> None:
        """Record what tasks had reported when they exited."""
        found = {
            task: Figures(step=state.reached.step or None, metrics=dict(state.metrics))
            for task, state in run.job.tasks.items()
            if state.reached.step or state.metrics
        }
        self._add(found)

    def _measure(self) -> None:
        if self.job.phase is not Phase.ENDED and self._writer is not None:
            self.supervision.measured(self._take)
            self._mailbox.call_at(self._mailbox.now() + self._writer.interval, self._measure)

    def _take(self, status: Status) -> None:
        self._add({task.task: _figures(task) for task in status.tasks if task.rss_bytes is not None})

    def _add(self, figures: dict[str, Figures]) -> None:
        if figures and self._writer is not None:
            with suppress(OSError):  # a full disk costs points
                self._writer.add(Moment(time.time(), figures))


def _figures(task: TaskStatus) -> Figures:
    used = (task.cpu_percent, task.rss_bytes, task.gpu_percent, task.gpu_bytes)
    return Figures(task.step, task.steps_per_second, *used, task.metrics or {}, task.total_steps)
