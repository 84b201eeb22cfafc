"""Describe what a run is made of while its agents start."""

from __future__ import annotations

import threading

from tflaunch.features.records import run_record
from tflaunch.runtime.loop import Run
from tflaunch.runtime.watchers import Found, Supervision, Watcher

_PATIENCE = 5.0  # seconds at the end of a short run


class Recorder(Watcher):
    """Writes the record of a run in a thread of its own."""

    def __init__(self, supervision: Supervision) -> None:
        self._supervision = supervision
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin while agents start: later, it would delay the first tasks."""
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        run_record.write(self._supervision.config.directory.path, self._supervision.job.original)

    def finish(self, run: Run) -> Found:
        """Wait until the record is written."""
        if self._thread is not None:
            self._thread.join(_PATIENCE)
        return Found([], [])
