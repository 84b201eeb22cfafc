"""Submit a run to Slurm: store its order, and read it back when the job starts."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tflaunch import private_files
from tflaunch.client import runs
from tflaunch.errors import EXIT_INTERNAL, EXIT_PREFLIGHT, EXIT_USAGE, TflaunchError
from tflaunch.slurm import batch, commands
from tflaunch.slurm.commands import BadOption, NoSlurmHere, SlurmError
from tflaunch.store.run_dir import SUPERVISOR_LOG, RunDirectory, open_run

_ORDER_NAME = "order.json"
_SCRIPT_NAME = "job.sh"
# `python -m` would import modules of the working directory that shadow real ones.
_PROGRAM = "import sys; sys.path.pop(0); from tflaunch.__main__ import main; main()"
_SCRIPT = """\
#!/bin/bash
{options}
exec {command}
"""


class Order(NamedTuple):
    """The arguments of `up --on slurm`. The spec's file is in ``directory``, with the ending ``suffix``."""

    directory: str
    suffix: str
    settings: Sequence[str] = ()
    name: str | None = None
    command: Sequence[str] = ()
    log_dir: str | None = None
    metrics_port: int | None = None
    preflight: bool = True
    drill: str | None = None


def submit(directory: RunDirectory, order: Order, options: Sequence[str]) -> str:
    """Submit a run to Slurm, and return the job's ID.

    Args:
        directory: the run's, which has a copy of its spec.
        order: how to start it.
        options: for sbatch.

    Raises:
        TflaunchError: sbatch does not know an option (exit code 2), or the job cannot be submitted (3).
    """
    private_files.write_text(directory.path / _ORDER_NAME, json.dumps(order._asdict()))
    log = shlex.quote(str(directory.path / SUPERVISOR_LOG).replace("%", "%%"))
    given = {option.removeprefix("--").partition("=")[0] for option in options}
    ours = {"output": log, "open-mode": "append"}
    lines = [*options, *(f"--{name}={value}" for name, value in ours.items() if name not in given)]
    command = [sys.executable, "-c", _PROGRAM, "supervise", str(directory.path)]
    text = _SCRIPT.format(options="\n".join(f"#SBATCH {line}" for line in lines), command=shlex.join(command))
    private_files.write_text(directory.path / _SCRIPT_NAME, text)
    try:
        job = commands.submit_script(text)
    except SlurmError as error:
        shutil.rmtree(directory.path, ignore_errors=True)  # the run never existed
        raise _refused(error) from None
    batch.note_job(directory.path, job)
    return job


def _refused(error: SlurmError) -> TflaunchError:
    if isinstance(error, NoSlurmHere):
        message = f"{error}; run this on a login node of a Slurm cluster, or without --on slurm"
        return TflaunchError(message, EXIT_PREFLIGHT)
    message = f'Slurm does not take the job: {error}; correct the options of sbatch on the command line or in "slurm"'
    return TflaunchError(message, EXIT_USAGE if isinstance(error, BadOption) else EXIT_PREFLIGHT)


def take_up(path: Path) -> tuple[Order, RunDirectory]:
    """Return the order in a run's directory, and the directory, prepared for the run to begin.

    Files of an earlier execution of the job, before Slurm requeued it, are moved to ``earlier-N``.

    Raises:
        TflaunchError: there is no order, or another user could have written it.
    """
    open_run(path)
    try:
        order = Order(**json.loads((path / _ORDER_NAME).read_text()))
    except (OSError, TypeError, ValueError) as error:
        raise TflaunchError(f"{path} has no order for a run: {error}", EXIT_INTERNAL) from None
    if job := os.environ.get("SLURM_JOB_ID"):
        batch.note_job(path, job)  # the run may have ended and been resubmitted by hand
    restarts = restart_count()
    if restarts:
        _move_aside(path, f"{batch.EARLIER}{restarts}", f"spec{order.suffix}")
    logs = path / "logs"
    if order.log_dir is not None:
        logs = Path(order.log_dir) / (f"restart-{restarts}" if restarts else "")
    private_files.make_directories(logs)
    if logs.parent != path and not (path / "logs").is_symlink():
        (path / "logs").symlink_to(logs)
    return order, RunDirectory.existing(path, logs)


def restart_count() -> int:
    """Return how many times Slurm has restarted this job."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def _move_aside(path: Path, name: str, spec: str) -> None:
    kept = {_ORDER_NAME, _SCRIPT_NAME, SUPERVISOR_LOG, spec, *batch.FILES, runs.LOCK_NAME}
    earlier = path / name
    earlier.mkdir(mode=0o700, exist_ok=True)
    for entry in list(path.iterdir()):
        if entry.name not in kept and not entry.name.startswith(batch.EARLIER):
            entry.rename(earlier / entry.name)
