"""Record the resource usage and progress of tasks for charts: a bounded file in the run's directory."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tflaunch.explain.run_status import Status, TaskStatus
from tflaunch.store.run_dir import SAMPLES_NAME
from tflaunch_worker import wire

FIELDS = ("steps_per_second", "loss", "cpu_percent", "rss_bytes")
"""What a sample has of each task, in this order; None for what is not known."""

_SHORTEST = 2.0  # seconds between two samples at first
_FIGURES = 100_000  # at most this many samples of tasks are kept
_MOST, _LEAST = 400, 60  # samples
_LARGEST = 64 * 1024 * 1024  # bytes of a file that is read


def read_samples(directory: Path) -> list[dict[str, Any]]:
    """Return the samples of the run in ``directory``, oldest first; none if none were recorded.

    Each has ``time``, in seconds since the epoch, and ``tasks``: task to its figures, as in `FIELDS`.
    """
    try:
        with (directory / SAMPLES_NAME).open("rb") as file:
            lines = file.read(_LARGEST).split(b"\n")[:-1]
    except OSError:
        return []
    found = (_parsed(line) for line in lines)
    return [sample for sample in found if sample is not None]


class SampleRecorder:
    """Records the samples of one run, if no other process does.

    When the file is full, every other sample is dropped, and samples are taken half as often: a chart of a run of any
    length has between ``_MOST`` / 2 and ``_MOST`` points.
    """

    def __init__(self, directory: Path, tasks: int) -> None:
        """Prepare to record.

        Args:
            directory: the run's directory.
            tasks: the number of tasks.

        Raises:
            OSError: the file cannot be written, or another process records this run (`BlockingIOError`).
        """
        self._path = directory / SAMPLES_NAME
        self._most = max(min(_FIGURES // max(tasks, 1), _MOST), _LEAST)
        self._lock = os.open(directory / f"{SAMPLES_NAME}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise
        self._samples = read_samples(directory)
        self._interval = _SHORTEST
        if len(self._samples) > 1:
            span = self._samples[-1]["time"] - self._samples[0]["time"]
            self._interval = max(span / (len(self._samples) - 1), _SHORTEST)
        try:
            self._rewrite()
        except OSError:
            self.close()
            raise

    def add(self, status: Status, now: float) -> None:
        """Record a status, unless too little time has passed since the last one.

        Raises:
            OSError: there is no room.
        """
        if self._samples and 0 <= now - self._samples[-1]["time"] < self._interval:
            return
        sample = sample_of(status.tasks, now)
        if not sample["tasks"]:
            return
        self._samples.append(sample)
        if len(self._samples) > self._most:
            del self._samples[1::2]
            self._interval *= 2
            self._rewrite()
        else:
            with open(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), "wb") as file:
                file.write(_line(sample))

    def close(self) -> None:
        """Let another process record."""
        os.close(self._lock)

    def _rewrite(self) -> None:
        new = self._path.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.writelines(map(_line, self._samples))
        new.replace(self._path)


def sample_of(tasks: Iterable[TaskStatus], now: float) -> dict[str, Any]:
    """Return the sample of tasks whose usage is known."""
    figures = {task.task: _figures(task) for task in tasks if task.cpu_percent is not None}
    return {"time": round(now, 1), "tasks": figures}


def _figures(task: TaskStatus) -> list[float | None]:
    loss = (task.metrics or {}).get("loss")
    return [task.steps_per_second, loss, task.cpu_percent, task.rss_bytes]


def _line(sample: dict[str, Any]) -> bytes:
    return json.dumps(sample, separators=(",", ":")).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return a sample, None if the line is damaged."""
    try:
        sample = wire.parse(line)
        if isinstance(sample["time"], int | float) and isinstance(sample["tasks"], dict):
            return dict(sample)
    except (ValueError, TypeError, KeyError):
        pass
    return None
