"""Explain why Slurm ends a job: its time limit, scancel, or a preemption."""

from __future__ import annotations

import re
import signal
import threading
import time
from pathlib import Path

from tflaunch.core.events import Interrupted
from tflaunch.core.host_state import HostPhase
from tflaunch.core.job_state import Job
from tflaunch.features.slurm import batch, commands
from tflaunch.features.slurm.commands import SlurmError
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch.store.run_dir import SUPERVISOR_LOG

_MOST_EARLY = 60.0  # seconds by which the signal of sbatch may come before the time that it names
_LEAD_OF_TERM = r"--signal=\S*?TERM@(\d+)"
_SOON = 2.0  # seconds, in which the tasks could save already
_HEARD_EVERYWHERE = 0.5  # seconds
_JUST_NOW = 60.0  # seconds
_MOST_SAID = 16 * 1024
_CANCELLED = r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT (\S+)(?: DUE TO ([^*\n]{1,200}?))? \*\*\*"
_NEAR_LIMIT = "NEAR TIME LIMIT"
_NEVER = "None"
_CANCELS = "CANCEL"
_WHY = {
    "": "the job was cancelled with scancel",
    "TIME LIMIT": "the time limit{limit} is reached (slurm.time)",
    _NEAR_LIMIT: "the time limit{limit} will soon be reached (slurm.time)",
    "PREEMPTION": "the job was preempted by another one",
    "JOB REQUEUE": "the job was put back into the queue",
    "NODE FAILURE": "a node of the job has failed",
}


def explain_term(directory: Path) -> str:
    """Return why Slurm sent TERM to a run's job; "" if Slurm does not say so soon.

    Its daemon writes the reason into the job's output just before it sends the signal; `scontrol` tells only later.
    A signal that the job has asked for with ``--signal`` looks there as one of scancel, but the job then goes on.
    """
    try:
        job = commands.find_job(batch.job_of(directory) or "", patience=_SOON)
        output = (directory / SUPERVISOR_LOG).read_bytes()[-_MOST_SAID:].decode("utf-8", "replace")
        leads = re.findall(_LEAD_OF_TERM, (directory / batch.SCRIPT_NAME).read_text("utf-8", "replace"))
    except (SlurmError, OSError):
        return ""
    said = [reason for at, reason in re.findall(_CANCELLED, output) if commands.seconds_until(at) > -_JUST_NOW]
    lead = float(leads[-1] if leads else 0) + _MOST_EARLY
    is_near = job is not None and job.is_running and job.seconds_left <= lead
    reason = _NEAR_LIMIT if is_near else said[-1] if said else None
    if said and not is_near:  # the agents get it, too: tasks that hear it from Slurm must not hear it from us before
        time.sleep(_HEARD_EVERYWHERE)
    limit = "" if job is None else f" of {job.time_limit}"
    return "" if reason is None else _WHY.get(reason, f"Slurm ends the job: {reason.lower()}").format(limit=limit)


def explain_preemption(directory: Path) -> str:
    """Return a sentence if a run's job is preempted for good, else ""."""
    try:
        job = commands.show("job", batch.job_of(directory) or "")
        if job.get("PreemptTime", _NEVER) == _NEVER:
            return ""
        comes_back = job.get("Requeue") != "0" and (
            commands.show("partition", job.get("Partition", "")).get("PreemptMode") != _CANCELS
        )
    except SlurmError:
        return ""
    return "" if comes_back else _WHY["PREEMPTION"]


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
        if why := explain_preemption(self._directory):
            self._mailbox.put(Interrupted(signal.SIGTERM, why))
