"""Runs that are Slurm jobs: their ID and state, and the files in which they are noted."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

from tflaunch import private_files
from tflaunch.features.slurm import commands
from tflaunch.features.slurm.commands import SlurmError, SlurmJob
from tflaunch.store.run_dir import SUPERVISOR_LOG
from tflaunch_worker import wire

_JOB_NAME = "slurm.json"
_LIFE_NAME = "life"
EARLIER = "earlier-"
"""Prefix of the subdirectories of a run directory with files of the job's earlier executions."""
_JOB = r"[0-9]{1,18}(?:_[0-9]{1,18})?(?:\+[0-9]{1,6})?"  # includes jobs of an array or a heterogeneous job
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
FILES = (_JOB_NAME, _LIFE_NAME)
"""The files in a run directory that all executions of the job share."""


def note_job(directory: Path, job: str) -> None:
    """Record the job ID of a run."""
    _write(directory, {"job": job})


def job_of(directory: Path) -> str | None:
    """Return the job ID of a run, None if it is not a Slurm job."""
    return _read(directory).get("job")


def note_life(directory: Path, restarts: int) -> None:
    """Record that the job has begun, after being restarted ``restarts`` times."""
    private_files.write_text(directory / _LIFE_NAME, str(restarts))


def earlier_lives(directory: Path) -> list[Path]:
    """Return the directories with files of the job's earlier executions, oldest first."""
    found = [path for path in directory.glob(f"{EARLIER}*") if path.name.removeprefix(EARLIER).isdecimal()]
    return sorted(found, key=lambda path: int(path.name.removeprefix(EARLIER)))


def has_begun(directory: Path, job: SlurmJob) -> bool:
    """Whether the current execution of the job has a journal, or had one when it ended."""
    try:
        return int((directory / _LIFE_NAME).read_text()) >= job.restarts
    except (OSError, ValueError):
        return False


def current_job(directory: Path) -> SlurmJob | None:
    """Return the current state of a run's job; None if the run has no unfinished job.

    Raises:
        SlurmError: Slurm cannot be queried.
    """
    known = _read(directory)
    if "job" not in known or known.get("is_over"):
        return None
    job = commands.find_job(known["job"])
    if job is not None and not job.is_over:
        return job
    try:
        _write(directory, {**known, "is_over": True})  # saves asking Slurm again
    except OSError:
        pass
    return None


def explain_term(directory: Path, lead: float) -> str:
    """Return why Slurm has sent TERM to the job of a run, "" if Slurm does not say so soon.

    Its daemon writes the reason into the job's output just before it sends the signal; `scontrol` tells only later.
    A signal that the job has asked for with ``--signal`` looks there as one of scancel, but the job then goes on.

    Args:
        directory: the run's.
        lead: how long before the time limit the job has asked for TERM, in seconds.
    """
    try:
        job = commands.find_job(job_of(directory) or "", patience=_SOON)
        output = (directory / SUPERVISOR_LOG).read_bytes()[-_MOST_SAID:].decode("utf-8", "replace")
    except (SlurmError, OSError):
        return ""
    said = [reason for at, reason in re.findall(_CANCELLED, output) if commands.seconds_until(at) > -_JUST_NOW]
    is_near = job is not None and job.is_running and job.seconds_left <= lead
    reason = _NEAR_LIMIT if is_near else said[-1] if said else None
    if said and not is_near:  # the agents get it, too: tasks that hear it from Slurm must not hear it from us before
        time.sleep(_HEARD_EVERYWHERE)
    limit = "" if job is None else f" of {job.time_limit}"
    return "" if reason is None else _WHY.get(reason, f"Slurm ends the job: {reason.lower()}").format(limit=limit)


def explain_preemption(directory: Path) -> str:
    """Return that the job of a run is preempted for good, "" if it is not, or may come back into the queue."""
    try:
        job = commands.show("job", job_of(directory) or "")
        if job.get("PreemptTime", _NEVER) == _NEVER:
            return ""
        comes_back = job.get("Requeue") != "0" and (
            commands.show("partition", job.get("Partition", "")).get("PreemptMode") != _CANCELS
        )
    except SlurmError:
        return ""
    return "" if comes_back else _WHY["PREEMPTION"]


def _read(directory: Path) -> dict[str, str]:
    try:
        known = wire.parse((directory / _JOB_NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    job = known.get("job") if isinstance(known, dict) else None
    return known if isinstance(job, str) and re.fullmatch(_JOB, job) else {}


def _write(directory: Path, known: dict[str, object]) -> None:
    temporary = directory / f"{_JOB_NAME}.{os.getpid()}"
    private_files.write_text(temporary, json.dumps(known))
    temporary.replace(directory / _JOB_NAME)
