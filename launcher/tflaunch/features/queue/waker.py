"""Let the next run of the queue begin when a run has ended."""

from __future__ import annotations

from collections.abc import Callable

from tflaunch.errors import TflaunchError
from tflaunch.features.queue import DIRECTORY_NAME
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch.store.run_dir import home


class QueueWaker(Watcher):
    """Starts a dispatcher if runs wait for the end of this one, and the dispatcher was killed."""

    def __init__(self, supervision: Supervision) -> None:
        """Do nothing before the end."""

    def follow_up(self, say: Callable[[str], None]) -> None:
        """Start it."""
        try:
            if not (home() / DIRECTORY_NAME).exists():
                return  # nothing was ever queued
            from tflaunch.features.queue import queue_wake, run_queue  # most runs have none waiting

            if run_queue.has_entries():
                queue_wake.ensure_dispatcher()
        except TflaunchError:
            pass  # the next command that looks at the queue says why
