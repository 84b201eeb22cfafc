"""Apply the `retention` of a spec when one of its runs has ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from tflaunch.errors import TflaunchError
from tflaunch.explain import wording
from tflaunch.features.prune import prune
from tflaunch.runtime.watchers import Supervision, Watcher


class Retention(Watcher):
    """Removes runs that are too old."""

    def __init__(self, supervision: Supervision) -> None:
        self._plan = supervision.job.original

    def follow_up(self, say: Callable[[str], None]) -> None:
        """Remove them, and say how many."""
        job = self._plan.name
        try:
            removed = prune.apply_retention(job, self._plan.retention, time.time())
        except TflaunchError:
            return  # `tflaunch prune` says why
        if removed:
            say(f"removed {wording.counted(len(removed), 'old run')} of {job} (`retention` of the spec)")
