"""What is asked of Slurm, through its own commands."""

from __future__ import annotations

import re
import subprocess
from typing import NamedTuple

_PATIENCE = 60.0  # seconds: a busy controller takes its time
_FIELD = re.compile(r"(?:^| )([A-Za-z:/_]+)=(\S*)")
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_RUNNING = frozenset({"CONFIGURING", "RUNNING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "RESIZING", "STOPPED"})
_ENDING = "COMPLETING"


class SlurmError(Exception):
    """Slurm refused or could not be asked: one sentence."""


class NoSlurmHere(SlurmError):
    """This machine has no commands of Slurm."""


class SlurmJob(NamedTuple):
    """How a job stands.

    ``state`` is Slurm's word, such as PENDING or NODE_FAIL; ``reason`` why it waits; ``node`` the one on which its
    script runs; ``restarts`` how often it was requeued; ``exit_code`` that of its script.
    """

    state: str
    reason: str
    node: str
    restarts: int
    exit_code: int

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for nodes."""
        return self.state in _WAITING

    @property
    def is_running(self) -> bool:
        """Whether it has nodes and may go on."""
        return self.state in _RUNNING

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good."""
        return not self.is_waiting and not self.is_running and self.state != _ENDING


def ask(*command: str, given: str | None = None) -> str:
    """Return what a command of Slurm prints.

    Args:
        command: its words.
        given: its input.

    Raises:
        SlurmError: it cannot be run, or fails.
    """
    try:
        done = subprocess.run(
            command, input=given or "", capture_output=True, text=True, errors="replace", timeout=_PATIENCE, check=False
        )
    except FileNotFoundError:
        raise NoSlurmHere(f"there is no command `{command[0]}` here") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"`{command[0]}` cannot be run: {error}") from None
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise SlurmError(said[-1] if said else f"`{command[0]}` ended with code {done.returncode}")
    return done.stdout


def submit(script: str) -> str:
    """Submit a batch script, and return the number of its job.

    Raises:
        SlurmError: Slurm does not take it.
    """
    return ask("sbatch", "--parsable", given=script).strip().partition(";")[0]


def look(job: str) -> SlurmJob | None:
    """Return how a job stands; None for one that Slurm does not know, or does not know any more.

    Raises:
        SlurmError: Slurm cannot be asked.
    """
    try:
        shown = ask("scontrol", "--oneliner", "show", "job", job)
    except SlurmError as error:
        if "Invalid job id" in str(error):
            return None
        raise
    fields = dict(_FIELD.findall(shown))
    return SlurmJob(
        state=fields.get("JobState", ""),
        reason=fields.get("Reason", ""),
        node=fields.get("BatchHost", ""),
        restarts=int(fields.get("Restarts", "0")),
        exit_code=int(fields.get("ExitCode", "0:0").partition(":")[0]),
    )


def cancel(job: str) -> None:
    """Have a job ended.

    Raises:
        SlurmError: Slurm cannot be asked.
    """
    ask("scancel", job)


def step(job: str, node: str) -> list[str]:
    """Return the words before a command that shall run on one node of a job, with all that the job has there.

    ``--unbuffered``: srun would keep bytes back until a line is complete. Steps overlap: tasks are none of their own.
    """
    about = ["--overlap", "--whole", "--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none"]
    return ["srun", f"--jobid={job}", f"--nodelist={node}", *about, "--unbuffered", "--quiet"]
