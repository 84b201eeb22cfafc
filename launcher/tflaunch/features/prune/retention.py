"""Apply the `retention` of a spec when one of its runs has ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from tflaunch.errors import TflaunchError
from tflaunch.explain import wording
from tflaunch.features.prune import prune
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch.store import run_dir


class Retention(Watcher):
    """Removes runs that are too old."""

    def __init__(self, supervision: Supervision) -> None:
        self._plan = supervision.job.original

    def follow_up(self, say: Callable[[str], None]) -> None:
        """Remove them, and say how many."""
        job, retention, now = self._plan.name, self._plan.retention, time.time()
        try:
            if not run_dir.may_be_too_old(job, retention, now):
                return
            removed = prune.apply_retention(job, retention, now)
        except TflaunchError:
            return  # `tflaunch prune` says why
        if removed:
            say(f"removed {wording.counted(len(removed), 'old run')} of {job} (`retention` of the spec)")
