"""What `prune` prints with --json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from tflaunch.cli.json_output import Output
from tflaunch.features.prune.prune import KeptRun


class _RemovedRun(TypedDict):
    """A run that was removed, or would be; `logs_kept`: where its logs stay, if they are elsewhere."""

    run: str
    state: str
    ended: float | None
    size: int
    logs_kept: str | None


class _Cache(TypedDict):
    """What was removed of a cache; sizes are in bytes."""

    count: int
    size: int


class _Prune(TypedDict):
    """What was removed, or with --dry-run would be."""

    dry_run: bool
    removed: Sequence[_RemovedRun]
    caches: Mapping[str, _Cache]
    kept: Sequence[KeptRun]
    failures: Sequence[str]
    freed: int


PRUNE = Output(_Prune)
