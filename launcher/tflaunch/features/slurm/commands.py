"""Call Slurm's own commands."""

from __future__ import annotations

import math
import re
import subprocess
import time
from typing import NamedTuple

from tflaunch_worker.readable import exit_words

_PATIENCE = 60.0  # seconds; a busy controller is slow
_SHOWN = r"(?:^|\s)([A-Za-z]\w*)(?:=| += )(\S*)"  # of a job, and of the configuration
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_RUNNING = frozenset({"CONFIGURING", "RUNNING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "RESIZING", "STOPPED"})
_ENDING = "COMPLETING"
_USAGE_CODE = 255  # exit code of Slurm's commands when they reject an option
_OF_COMMAND = r"^(?:sbatch|scontrol|scancel|srun): (?:error: )?|^allocation failure: "
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
    """Slurm refused or could not be queried; the message is one sentence."""


class BadOptionError(SlurmError):
    """A Slurm command does not know an option, or its value."""


class NoSlurmError(SlurmError):
    """This machine has no Slurm commands."""


class SlurmJob(NamedTuple):
    """The state of a job.

    ``state`` is Slurm's term, such as PENDING or NODE_FAIL; ``reason``: why it waits; ``node``: where its script
    runs; ``restarts``: how often it was requeued; ``exit_code``: that of its script. ``time_limit`` is in Slurm's
    format, and so much of it is left, in seconds. ``partition``: where it waits or runs, or several, as in sbatch.
    """

    state: str
    reason: str
    node: str
    restarts: int
    exit_code: int
    time_limit: str = ""
    seconds_left: float = math.inf
    partition: str = ""

    @property
    def remedy(self) -> str:
        """Remedy for a job that may wait indefinitely; "" if it only waits its turn."""
        return _STUCK.get(self.reason, "") if self.is_waiting else ""

    @property
    def standing(self) -> str:
        """Its state, and why it waits, if Slurm knows that yet."""
        return f"{self.state} ({self.reason})" if self.is_waiting and self.reason not in ("", "None") else self.state

    @property
    def is_waiting(self) -> bool:
        """Whether the job waits for nodes."""
        return self.state in _WAITING

    @property
    def is_running(self) -> bool:
        """Whether the job has nodes and may continue."""
        return self.state in _RUNNING

    @property
    def is_ending(self) -> bool:
        """Whether the job is about to be over, or to wait again."""
        return self.state == _ENDING

    @property
    def is_over(self) -> bool:
        """Whether the job has ended for good."""
        return not self.is_waiting and not self.is_running and not self.is_ending


class NodeSize(NamedTuple):
    """What a node has: ``memory`` in MB."""

    cpus: int
    memory: int
    gpus: int


def run_command(*command: str, given: str | None = None, patience: float = _PATIENCE) -> str:
    """Return a Slurm command's output, from input ``given``, in ``patience`` seconds.

    Raises:
        NoSlurmError: this machine has no such command.
        BadOptionError: it rejects one of its options, or one in its input.
        SlurmError: it cannot be run, or fails.
    """
    try:
        done = subprocess.run(
            command, input=given or "", capture_output=True, text=True, errors="replace", timeout=patience, check=False
        )
    except FileNotFoundError:
        raise NoSlurmError(f"there is no command `{command[0]}` here") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"`{command[0]}` cannot be run: {error}") from None
    if done.returncode != 0:
        said = _reason(done.stderr) or f"`{command[0]}` {exit_words(done.returncode)}"
        raise (BadOptionError if done.returncode == _USAGE_CODE else SlurmError)(said)
    return done.stdout


def _reason(errors: str) -> str:
    """Join an error message's lines, without hints; the first is the most precise."""
    lines = [re.sub(_OF_COMMAND, "", line.strip()) for line in errors.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line and not line.startswith("Try ")))


def show(*what: str, patience: float = _PATIENCE) -> dict[str, str]:
    """Return the fields of `scontrol show`; of a heterogeneous job, its script's part.

    Raises:
        SlurmError: Slurm has no such object, or cannot be queried.
    """
    fields = re.findall(_SHOWN, run_command("scontrol", "--oneliner", "show", *what, patience=patience))
    return dict(reversed(fields))  # the first part is shown first


def show_nodes(partition: str) -> list[NodeSize]:
    """Return the resources of a partition's nodes.

    Raises:
        SlurmError: Slurm cannot be queried.
    """
    lines = run_command("sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%c %m %G").splitlines()
    return [NodeSize(int(cpus), int(memory), _gpus_in(gres)) for cpus, memory, gres in map(str.split, lines)]


def _gpus_in(gres: str) -> int:
    """Count GPUs in a node's generic resources, such as ``gpu:a100:4(S:0-1),tmp:1``."""
    return sum(int(number) for number in re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)", gres))


def find_job(job: str, patience: float = _PATIENCE) -> SlurmJob | None:
    """Return the state of a job; None if Slurm does not know it, or no longer does.

    Raises:
        SlurmError: Slurm cannot be queried.
    """
    try:
        fields = show("job", job, patience=patience)
    except SlurmError as error:
        if "Invalid job id" in str(error):
            return None
        raise
    return SlurmJob(
        state=fields.get("JobState", ""),
        reason=fields.get("Reason", ""),
        node=fields.get("BatchHost", ""),
        restarts=int(fields.get("Restarts", "0")),
        exit_code=int(fields.get("ExitCode", "0:0").partition(":")[0]),
        time_limit=fields.get("TimeLimit", ""),
        seconds_left=seconds_until(fields.get("EndTime", "")),
        partition=fields.get("Partition", ""),
    )


def seconds_until(moment: str) -> float:
    """Return the seconds until a local time in Slurm's format; infinite if unknown."""
    try:
        return time.mktime(time.strptime(moment, "%Y-%m-%dT%H:%M:%S")) - time.time()
    except ValueError:
        return math.inf


def cancel_job(job: str) -> None:
    """Cancel a job.

    Raises:
        SlurmError: Slurm cannot be queried.
    """
    run_command("scancel", job)


def step_command(job: str, node: str) -> list[str]:
    """Return the argv prefix to run on one node of a job (``7``) or part (``7+1``).

    It has all the job's resources there.
    ``--unbuffered``: otherwise srun holds bytes back until a line is complete. Steps overlap, because tasks are not
    steps of their own.
    """
    about = ["--overlap", "--whole", "--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none"]
    number, _, part = job.partition("+")
    if part:
        about.append(f"--het-group={part}")
    return ["srun", f"--jobid={number}", f"--nodelist={node}", *about, "--unbuffered", "--quiet"]
