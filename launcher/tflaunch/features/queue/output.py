"""What `queue` prints with --json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from tflaunch.cli.json_output import Output


class _Obstacle(TypedDict):
    """Runs that hold a machine; with `is_ahead`, they wait for it as well, and were queued before."""

    machine: str
    runs: Sequence[str]
    is_ahead: bool


class _QueueEntry(TypedDict):
    """A run that waits, since `queued` (seconds since 1970); `needs`: machine to number of GPUs, null for all of it."""

    run: str
    queued: float
    needs: Mapping[str, int | None]
    values: Mapping[str, str]
    obstacles: Sequence[_Obstacle]
    reason: str


QUEUE = Output(Sequence[_QueueEntry])
