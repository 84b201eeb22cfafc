"""Describe what a run is made of while its agents start."""

from __future__ import annotations

import threading

from tflaunch.runtime.loop import Run
from tflaunch.runtime.watchers import Found, Supervision, Watcher

_PATIENCE = 5.0  # seconds at the end of a short run


class Recorder(Watcher):
    """Writes the record of a run in a thread of its own."""

    def __init__(self, supervision: Supervision) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._write, args=[supervision], daemon=True)
        self._thread.start()

    def _write(self, supervision: Supervision) -> None:
        from tflaunch.features.records import run_record

        run_record.write(supervision.config.directory.path, supervision.job.original)

    def finish(self, run: Run) -> Found:
        """Wait until the record is written."""
        self._thread.join(_PATIENCE)
        return Found([], [])
