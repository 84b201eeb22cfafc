"""What `profile` prints with --json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from tflaunch.cli.json_output import Output


class _TaskProfile(TypedDict):
    """The profile of a task: sampled stacks with a `flame_graph`, or the `problem` with it."""

    task: str
    problem: str | None
    path: str | None
    samples: int
    hottest: str | None
    flame_graph: str | None


class _Profile(TypedDict):
    """What the tasks of a run did for some seconds."""

    run: str
    seconds: float
    tasks: Sequence[_TaskProfile]


PROFILE = Output(_Profile)
