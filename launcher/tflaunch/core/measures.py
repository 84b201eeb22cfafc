"""What a task uses and how far it has come, as its agent measured it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tflaunch.printable import printable

_MOST_METRICS = 20
_LONGEST_NAME = 64
_LARGEST = 1e300  # no figure at all; an integer may be too large for a float
_NUMBERS = ("step", "epoch", "epochs", "steps_per_epoch", "steps_per_second", "age")


class Progress(NamedTuple):
    """How far a training program says it is; None where it does not say."""

    step: float | None
    epoch: float | None
    epochs: float | None
    steps_per_epoch: float | None
    steps_per_second: float | None
    metrics: Mapping[str, float]
    age: float | None
    """Seconds from when the program last spoke of it until the measure."""


class Measure(NamedTuple):
    """What a living attempt of a task uses; None where that is not known."""

    task: str
    attempt: int
    cpu_seconds: float | None
    """Time of processors used so far. It falls when a process ends that nobody of the task waited for."""
    rss_bytes: float | None
    gpu_bytes: float | None
    gpu_percent: float | None
    """How busy the GPUs on which it runs were in the last second, 100 for all of them all the time."""
    progress: Progress | None
    shared_bytes: float | None = None
    """How much of ``rss_bytes`` other processes have as well; known of tasks that were forked (`preload`)."""


def from_wire(tasks: object) -> dict[str, Measure]:
    """Return the measures in a ``measured`` frame.

    Args:
        tasks: what the frame says: task to a mapping of what is known.

    Raises:
        ValueError: it is not that.
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
        progress=None if progress is None else _progress(_mapping(progress)),
        shared_bytes=_number(known.get("shared_bytes")),
    )


def _progress(known: Mapping[str, Any]) -> Progress:
    numbers = {name: _number(known.get(name)) for name in _NUMBERS}
    metrics: dict[str, float] = {}
    for name, value in _mapping(known.get("metrics", {})).items():
        number = _number(value)
        if number is not None and len(metrics) < _MOST_METRICS:
            metrics[printable(name, _LONGEST_NAME)] = number
    return Progress(metrics=metrics, **numbers)


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("measures are no mapping")  # noqa: TRY004 - what a link says is a value
    return value


def _number(value: object) -> float | None:
    """Return a finite number or None.

    Raises:
        ValueError: it is something else.
    """
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST:
        return value  # NaN is not between them
    raise ValueError("a figure is no number")
