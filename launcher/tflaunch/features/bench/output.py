"""What `bench` prints with --json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from tflaunch.features.bench.scaling import HostUse, TaskUse


class _ScaledRun(TypedDict):
    """A run that was measured; times are in seconds.

    `efficiency` is null if it is not known how the examples of a step change with the workers.
    """

    workers: int
    run: str
    steps: float
    seconds: float
    steps_per_second: float
    examples: float | None
    examples_per_second: float | None
    efficiency: float | None
    efficiency_if_weak: float
    efficiency_if_strong: float
    start_up: float
    training: float | None
    is_synchronous: bool
    limit: str
    reason: str
    advice: str
    tasks: Sequence[TaskUse]
    hosts: Sequence[HostUse]


class Scale(TypedDict):
    """How a training scales; `problem` says why it was not measured to the end, and `scaling` is weak or strong."""

    name: str
    scaling: str | None
    runs: Sequence[_ScaledRun]
    notes: Sequence[str]
    problem: str | None
