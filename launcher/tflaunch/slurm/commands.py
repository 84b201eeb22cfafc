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
_USAGE_CODE = 255  # what Slurm's commands exit with when they refuse an option
_OF_COMMAND = re.compile(r"^(?:sbatch|scontrol|scancel|srun): (?:error: )?")
_STUCK = {
    "PartitionNodeLimit": "its partition does not allow that many nodes; ask for fewer, or for another partition",
    "PartitionTimeLimit": "its partition does not allow that much time; ask for less, or for another partition",
    "PartitionConfig": "no node of its partition has what it asks for; ask for less, or for another partition",
    "PartitionDown": "its partition is down; ask for another partition",
    "PartitionInactive": "its partition is inactive; ask for another partition",
    "BadConstraints": "no node has what it asks for; ask for less",
    "InvalidAccount": "its account is not valid; ask for another account",
    "InvalidQOS": "its QOS is not valid; ask for another QOS",
    "JobHeldUser": "it is held; `scontrol release` lets it start",
    "JobHeldAdmin": "an administrator holds it",
}


class SlurmError(Exception):
    """Slurm refused or could not be asked: one sentence."""


class BadOption(SlurmError):
    """A command of Slurm does not know an option, or not its value."""


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
    def remedy(self) -> str:
        """What to do about a job that waits for what may never come; "" for one that only waits."""
        return _STUCK.get(self.reason, "") if self.is_waiting else ""

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
        NoSlurmHere: there is no such command.
        BadOption: it refuses one of its options, or of its input's.
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
        said = _reason(done.stderr) or f"`{command[0]}` ended with code {done.returncode}"
        raise (BadOption if done.returncode == _USAGE_CODE else SlurmError)(said)
    return done.stdout


def _reason(errors: str) -> str:
    """What a command says of its failure: several lines, of which the first is the most precise, or the last a tip."""
    lines = [_OF_COMMAND.sub("", line.strip()) for line in errors.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line and not line.startswith("Try ")))


def submit(script: str) -> str:
    """Submit a batch script, and return the number of its job.

    Raises:
        NoSlurmHere: there is no sbatch.
        BadOption: it has an option that sbatch does not know.
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
