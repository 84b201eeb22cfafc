"""End a run whose job Slurm preempts with a GraceTime: at its beginning, only agents get TERM, and no reason."""

from __future__ import annotations

import signal
import threading

from tflaunch.core.events import Interrupted
from tflaunch.core.host_state import HostPhase
from tflaunch.core.job_state import Job
from tflaunch.features.slurm import batch
from tflaunch.runtime.watchers import Supervision, Watcher


class GraceTime(Watcher):
    """Asks Slurm when the first host of a run is being emptied."""

    def __init__(self, supervision: Supervision) -> None:
        self._directory = supervision.config.directory.path
        self._mailbox = supervision.mailbox
        self._is_emptied = False

    def watch(self, job: Job, now: float) -> None:
        """Ask at the first of the hosts that are emptied together."""
        was_emptied, self._is_emptied = (
            self._is_emptied,
            any(host.phase is HostPhase.LEAVING and host.is_drained for host in job.hosts.values()),
        )
        if self._is_emptied and not was_emptied:
            threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        if why := batch.explain_preemption(self._directory):
            self._mailbox.put(Interrupted(signal.SIGTERM, why))
