"""Resource usage and progress of tasks, as measured by their agents on request."""

from collections.abc import Mapping
from typing import NamedTuple

from tflaunch.core.events import Attempt, Figure, Metrics
from tflaunch.records import check_of


class Progress(NamedTuple):
    """Progress as reported by the training program; None for what it does not report."""

    step: Figure | None
    epoch: Figure | None
    epochs: Figure | None
    steps_per_epoch: Figure | None
    steps_per_second: Figure | None
    metrics: Metrics
    age: Figure | None
    """Seconds between the program's last report and the measurement."""
    is_from_output: bool = False
    """Whether the program reports nothing, and its output was read instead."""


class Measure(NamedTuple):
    """Resource usage of a living attempt of a task; None for what is not known."""

    attempt: Attempt
    cpu_seconds: Figure | None
    """CPU time used so far. It drops when a process ends that no process of the task waits for."""
    rss_bytes: Figure | None
    gpu_bytes: Figure | None
    gpu_percent: Figure | None
    """Load of the GPUs that it runs on over the last second; 100 means all of them were always busy."""
    progress: Progress | None
    shared_bytes: Figure | None = None
    """The part of ``rss_bytes`` shared with other processes; known for forked tasks (`preload`) only."""
    refused: Figure | None = None
    """Number of connections to its port from outside the cluster that were refused, in all attempts."""


def from_wire(tasks: object) -> dict[str, Measure]:
    """Return the measures in a ``measured`` frame.

    Raises:
        ValueError: the content has another form.
    """
    measures: dict[str, Measure] = check_of(Mapping[str, Measure])("tasks", tasks)
    return measures
