"""What the tasks of a run reported and used over time: a bounded file in the run's directory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tflaunch.clusterspec.values import MAX_TASKS
from tflaunch.core.events import Figure, Metrics, Name
from tflaunch.core.events import Moment as Time
from tflaunch.records import read_record
from tflaunch.store.run_dir import HISTORY_NAME
from tflaunch_worker import wire

_SHORTEST = 2.0  # seconds between two moments at first
_MOST = 1999  # moments
_MOST_BYTES = 950_000  # with a line above it, still at most about 1 MB
_LONGEST_LINE = _MOST_BYTES // 200  # so that a curve of a run of many tasks has 100 points, too


class Figures(NamedTuple):
    """What a task had reported and used; None for what is not known."""

    step: Figure | None = None
    steps_per_second: Figure | None = None
    cpu_percent: Figure | None = None
    """In percent of one CPU."""
    rss_bytes: Figure | None = None
    gpu_percent: Figure | None = None
    gpu_bytes: Figure | None = None
    metrics: Metrics = {}  # noqa: RUF012 (never changed)
    total: Figure | None = None
    """The number of steps of the whole training; missing in runs of earlier versions."""


class Moment(NamedTuple):
    """The figures of tasks at a time, in seconds since the epoch."""

    time: Time
    tasks: Mapping[Name, Figures]


def read_history(directory: Path) -> list[Moment]:
    """Return the moments of the run in ``directory``, oldest first; none if none were recorded."""
    return list(_moments_in(_lines(directory)))


def last_moment(directory: Path) -> Moment | None:
    """Return the last moment of the run in ``directory``, None if none was recorded."""
    return next(_moments_in(reversed(_lines(directory))), None)


class HistoryWriter:
    """Writes the history of one run, which no other process does; a new one goes on with what is there.

    When there are too many moments, or the file is too large, every other moment is dropped, and from then on they are
    taken half as often: so that a curve of a run of any length has a bounded number of points, evenly spaced. Of a run
    of many tasks, only the first ones have curves.
    """

    def __init__(self, directory: Path) -> None:
        self.interval = _SHORTEST
        """Seconds between two moments."""
        self._path = directory / HISTORY_NAME
        self._lines = _lines(directory)
        self._size = sum(map(len, self._lines))
        self._is_whole = False
        self._most_tasks = MAX_TASKS
        times = [moment.time for moment in _moments_in(self._lines)]
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
        if is_odd and (len(self._lines) > _MOST or self._size > _MOST_BYTES):
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


def _lines(directory: Path) -> list[bytes]:
    """Return the whole lines of the file; [] if there is none."""
    try:
        with (directory / HISTORY_NAME).open("rb") as file:
            lines = file.read(2 * _MOST_BYTES).splitlines(keepends=True)
    except OSError:
        return []
    return [line for line in lines if line.endswith(b"\n")]


def _line(moment: Moment, most: int) -> bytes:
    first = islice(moment.tasks.items(), most)
    tasks = {task: figures._replace(metrics=dict(figures.metrics)) for task, figures in first}
    return json.dumps([round(moment.time, 1), tasks], separators=(",", ":")).encode() + b"\n"


def _moments_in(lines: Iterable[bytes]) -> Iterator[Moment]:
    """Yield the moments in lines, without damaged ones."""
    for line in lines:
        try:
            yield read_record(Moment, wire.parse(line))
        except ValueError:
            continue
