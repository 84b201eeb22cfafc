"""Resource usage and progress of tasks, as measured by their agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tflaunch.printable import printable

_MOST_METRICS = 20
_LONGEST_NAME = 64
_LARGEST = 1e300  # beyond any real figure; also rejects integers that are too large for a float
_NUMBERS = ("step", "epoch", "epochs", "steps_per_epoch", "steps_per_second", "age")


class Progress(NamedTuple):
    """Progress as reported by the training program; None for what it does not report."""

    step: float | None
    epoch: float | None
    epochs: float | None
    steps_per_epoch: float | None
    steps_per_second: float | None
    metrics: Mapping[str, float]
    age: float | None
    """Seconds between the program's last report and the measurement."""
    is_from_output: bool = False
    """Whether the program reports nothing, and its output was read instead."""


class Measure(NamedTuple):
    """Resource usage of a living attempt of a task; None for what is not known."""

    task: str
    attempt: int
    cpu_seconds: float | None
    """CPU time used so far. It drops when a process ends that no process of the task waits for."""
    rss_bytes: float | None
    gpu_bytes: float | None
    gpu_percent: float | None
    """Load of the GPUs that it runs on over the last second; 100 means all of them were always busy."""
    progress: Progress | None
    shared_bytes: float | None = None
    """The part of ``rss_bytes`` shared with other processes; known for forked tasks (`preload`) only."""
    refused: float | None = None
    """Number of connections to its port from outside the cluster that were refused, in all attempts."""


def from_wire(tasks: object) -> dict[str, Measure]:
    """Return the measures in a ``measured`` frame.

    Args:
        tasks: the frame's content: task to a mapping of its known figures.

    Raises:
        ValueError: the content has another form.
    """
    return {task: _measure(task, _mapping(known)) for task, known in _mapping(tasks).items()}


def _measure(task: str, known: Mapping[str, Any]) -> Measure:
    attempt = known.get("attempt")
    if type(attempt) is not int:
        raise ValueError(f"a measure of {task} without its attempt")
    progress = known.get("progress")
    return Measure(
        task,
        attempt,
        cpu_seconds=_number(known.get("cpu_seconds")),
        rss_bytes=_number(known.get("rss_bytes")),
        gpu_bytes=_number(known.get("gpu_bytes")),
        gpu_percent=_number(known.get("gpu_percent")),
        progress=None if progress is None else read_progress(progress),
        shared_bytes=_number(known.get("shared_bytes")),
        refused=_number(known.get("refused")),
    )


def read_progress(known: object) -> Progress:
    """Return the progress in a frame.

    Raises:
        ValueError: it has another form.
    """
    said = _mapping(known)
    numbers = {name: _number(said.get(name)) for name in _NUMBERS}
    metrics: dict[str, float] = {}
    for name, value in _mapping(said.get("metrics", {})).items():
        number = _number(value)
        if number is not None and len(metrics) < _MOST_METRICS:
            metrics[printable(name, _LONGEST_NAME)] = number
    return Progress(metrics=metrics, is_from_output=said.get("is_from_output") is True, **numbers)


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("measures are no mapping")  # noqa: TRY004 - received data is a value, not a programming error
    return value


def _number(value: object) -> float | None:
    """Return a finite number or None.

    Raises:
        ValueError: the value is something else.
    """
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST:
        return value  # the comparison rejects NaN
    raise ValueError("a figure is not a number")
