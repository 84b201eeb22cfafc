"""Runs that are Slurm jobs: their IDs and states, and the files that record them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from tflaunch import private_files
from tflaunch.errors import EXIT_INTERNAL, EXIT_PREFLIGHT, TflaunchError
from tflaunch.features.slurm import commands
from tflaunch.features.slurm.commands import NoSlurmError, SlurmError, SlurmJob
from tflaunch.store.run_dir import runs_directory
from tflaunch_worker import wire

_JOB_NAME = "slurm.json"
_LIFE_NAME = "life"
ORDER_NAME, SCRIPT_NAME = "order.json", "job.sh"
"""How to begin the run, and what sbatch got."""
MARK = "tflaunch:"
"""What precedes the directory of a run in the comment of its job."""
EARLIER = "earlier-"
"""Prefix of the subdirectories of a run directory with files of the job's earlier executions."""
_JOB = r"[0-9]{1,18}(?:_[0-9]{1,18})?(?:\+[0-9]{1,6})?"  # includes jobs of an array or a heterogeneous job
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
    """Return whether the job's current execution has, or had at its end, a journal."""
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


def find_runs(settings: Sequence[str]) -> list[Path]:
    """Return this user's run directories in Slurm; links for another TFLAUNCH_HOME.

    Raises:
        TflaunchError: Slurm does not tell them, or this machine has none.
    """
    try:
        comments = commands.run_command("squeue", f"--user={os.getuid()}", "--noheader", "--format=%k")
    except NoSlurmError as error:
        raise TflaunchError(f"{error}; run this on a login node of a Slurm cluster", EXIT_PREFLIGHT) from None
    except SlurmError as error:
        raise TflaunchError(f"Slurm does not tell your jobs: {error}", EXIT_INTERNAL) from None
    paths = dict.fromkeys(Path(path) for path in re.findall(rf"{MARK}(/.+?)\s*$", comments, re.MULTILINE))
    return [_here(path) for path in paths if job_of(path) is not None]


def _here(directory: Path) -> Path:
    path = runs_directory() / directory.name
    if not os.path.lexists(path):
        private_files.make_directories(path.parent)
        path.symlink_to(directory)
    return path


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
