"""Runs that are Slurm jobs: their ID and state, and a connection to a supervisor on another machine."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import tflaunch_worker
from tflaunch import private_files
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.slurm import commands
from tflaunch.slurm.commands import SlurmError, SlurmJob
from tflaunch_worker import wire

_JOB_NAME = "slurm.json"
_LIFE_NAME = "life"
EARLIER = "earlier-"
"""Prefix of the subdirectories of a run directory with files of the job's earlier executions."""
_JOB = r"[0-9]{1,18}(?:_[0-9]{1,18})?(?:\+[0-9]{1,6})?"  # includes jobs of an array or a heterogeneous job
FILES = (_JOB_NAME, _LIFE_NAME)
"""The files in a run directory that all executions of the job share."""
_RELAY = (
    "import os,socket,sys;sys.path.insert(0,{root!r});from tflaunch_worker.boot import relay;"
    "os.chdir({directory!r});s=socket.socket(socket.AF_UNIX);s.connect({name!r});relay(s)"
)


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


def is_active(directory: Path) -> bool:
    """Whether the job of a run waits or runs, as far as Slurm can be queried here."""
    try:
        return current_job(directory) is not None
    except SlurmError:
        return False


def not_begun(directory: Path) -> str | None:
    """Return a message about a run that waits in Slurm's queue; None if it does not."""
    try:
        job = current_job(directory)
    except SlurmError:
        return None
    if job is None or has_begun(directory, job):
        return None
    remedy = f": {job.remedy}" if job.remedy else ""
    return f"run {directory.name} has not begun: job {job_of(directory)} is {job.state} ({job.reason}){remedy}"


def cancel_run(directory: Path) -> None:
    """Cancel the job of a run, if it has an unfinished one.

    Raises:
        TflaunchError: Slurm refuses.
    """
    job = job_of(directory)
    try:
        if job is not None and current_job(directory) is not None:
            commands.cancel_job(job)
    except SlurmError as error:
        raise TflaunchError(f"job {job} cannot be cancelled: {error}", EXIT_INTERNAL) from None


def connect_to_supervisor(directory: Path, name: str) -> tuple[socket.socket, subprocess.Popen[bytes]] | None:
    """Return a connection to a run's socket on the node of its job, and the process that relays it.

    ``name``: the socket's name in the run's directory. None if there is no such job.
    """
    try:
        job = current_job(directory)
    except SlurmError:
        return None
    if job is None or not job.is_running:
        return None
    root = str(Path(tflaunch_worker.__file__).parent.parent)
    program = _RELAY.format(root=root, directory=str(directory), name=name)
    words = [*commands.step_command(str(job_of(directory)), job.node), sys.executable, "-I", "-S", "-c", program]
    ours, theirs = socket.socketpair()
    try:
        carrier = subprocess.Popen(
            words, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError:
        ours.close()
        return None
    finally:
        theirs.close()
    return ours, carrier


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
