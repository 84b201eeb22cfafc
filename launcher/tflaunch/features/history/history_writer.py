"""The history of a run's reports and usage: a bounded file in its directory."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path

from tflaunch.clusterspec.values import MAX_TASKS
from tflaunch.store.history import MOST_BYTES, Moment, lines_in, moments_in
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
        self._size = sum(map(len, self._lines))
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
        self._size += len(line)
        is_odd = len(self._lines) % 2  # then the last one stays, and so does the interval before the next one
        if is_odd and (len(self._lines) > _MOST or self._size > MOST_BYTES):
            del self._lines[1::2]
            self._size = sum(map(len, self._lines))
            self.interval *= 2
            self._is_whole = False
        if self._is_whole:
            self._is_whole = False
            self._append(line)
        else:
            self._rewrite()
        self._is_whole = True

    def _append(self, line: bytes) -> None:
        with open(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), "wb") as file:
            file.write(line)

    def _rewrite(self) -> None:
        new = self._path.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.writelines(self._lines)
        new.replace(self._path)


def _line(moment: Moment, most: int) -> bytes:
    first = islice(moment.tasks.items(), most)
    tasks = {task: figures._replace(metrics=dict(figures.metrics)) for task, figures in first}
    return json.dumps([round(moment.time, 1), tasks], separators=(",", ":")).encode() + b"\n"
