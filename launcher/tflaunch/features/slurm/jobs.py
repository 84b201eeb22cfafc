"""Jobs of Slurm: its own commands, and the files of the runs that are jobs."""

import functools
import math
import os
import re
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple

from tflaunch import private_files
from tflaunch.errors import EXIT_INTERNAL, EXIT_PREFLIGHT, TflaunchError
from tflaunch.features.notes import read_note, write_note
from tflaunch.store.run_dir import runs_directory
from tflaunch_worker.readable import exit_words

_PATIENCE = 60.0  # seconds; a busy controller is slow
_SHOWN = r"(?:^|\s)([A-Za-z]\w*)(?:=| += )(\S*)"  # of a job, and of the configuration
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_RUNNING = frozenset({"CONFIGURING", "RUNNING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "RESIZING", "STOPPED"})
_ENDING = "COMPLETING"
_GIVEN_UP = ("down", "fail")  # states of nodes
_OF_TASKS = re.compile(
    r"S(?:LURM|RUN)_(?!ARRAY|CLUSTER|CONF|HET|JOB|JWT|NODE_ALIASES|RESTART|RLIMIT|SPANK|SUBMIT|WORKING)\w+"
)
"""Variables that srun reads as options, or that number the tasks of a step: the batch script's are for other steps."""
_NOT_FOR_RUNS = ("SBATCH_ARRAY_INX", "SBATCH_WAIT")  # a run is one job, and sbatch returns at once
_GPUS_OF_NODE = re.compile(r" Nodes=(\S+) CPU_IDs=\S* Mem=\d* GRES=(\S*)")
_GPUS = re.compile(r"gpu(?::[^:,(]+)?:(\d+)")
_GPUS_PER_NODE = 24  # the first version known to need it
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
_JOB_NAME = "slurm.json"
_LIFE_NAME = "life"
ORDER_NAME, SCRIPT_NAME = "order.json", "job.sh"
"""How to begin the run, and what sbatch got."""
REACHED_NAME = "reached.json"
"""How far a run had come at the time limit of its job."""
MARK = "tflaunch:"
"""What precedes the directory of a run in the comment of its job."""
EARLIER = "earlier-"
"""Prefix of the subdirectories of a run directory with files of the job's earlier executions."""
_JOB = r"[0-9]{1,18}(?:_[0-9]{1,18})?(?:\+[0-9]{1,6})?"  # includes jobs of an array or a heterogeneous job
FILES = (_JOB_NAME, _LIFE_NAME)
"""The files in a run directory that all executions of the job share."""


class SlurmError(Exception):
    """Slurm refused or could not be queried; the message is one sentence."""


class BadOptionError(SlurmError):
    """A Slurm command does not know an option, or its value."""


class NoSlurmError(SlurmError):
    """This machine has no Slurm commands."""


def _check_number(name: str, value: object) -> str:
    if isinstance(value, str) and re.fullmatch(_JOB, value):
        return value
    raise ValueError(f"field {name!r} must be the ID of a job")


class _Note(NamedTuple):
    """The job of a run; ``is_over``: Slurm need not be asked for it again."""

    job: Annotated[str, _check_number]
    is_over: bool = False


class SlurmJob(NamedTuple):
    """The state of a job.

    ``state`` is Slurm's term, such as PENDING or NODE_FAIL; ``reason``: why it waits; ``node``: where its script
    runs; ``restarts``: how often it was requeued; ``exit_code``: that of its script. ``time_limit`` is in Slurm's
    format, and so much of it is left, in seconds. ``partition``: where it waits or runs, or several, as in sbatch.
    ``nodes``: a list of those that it has or had, as `host_names` takes it.
    """

    state: str
    reason: str
    node: str
    restarts: int
    exit_code: int
    time_limit: str = ""
    seconds_left: float = math.inf
    partition: str = ""
    nodes: str = ""

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


def run_command(*command: str, given: str | None = None, patience: float = _PATIENCE) -> str:
    """Return a Slurm command's output, from input ``given``, in ``patience`` seconds.

    Raises:
        NoSlurmError: this machine has no such command.
        BadOptionError: it rejects one of its options, or one in its input.
        SlurmError: it cannot be run, or fails.
    """
    environ = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_RUNS}
    try:
        done = subprocess.run(
            command,
            env=environ,
            input=given or "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience,
            check=False,
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
    """Return the fields of `scontrol show`; raises as `run_command`."""
    fields = re.findall(_SHOWN, run_command("scontrol", "--oneliner", "show", *what, patience=patience))
    return dict(reversed(fields))  # the first part is shown first


def find_job(job: str, patience: float = _PATIENCE) -> SlurmJob | None:
    """Return the state of a job that Slurm knows, or None; raises as `run_command`."""
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
        nodes=fields.get("NodeList", ""),
    )


def failed_nodes(job: SlurmJob, patience: float = _PATIENCE) -> str:
    """Return the nodes of a job that Slurm has given up; "" for none, or if unknown."""
    words = ("sinfo", "--noheader", "--Node", f"--nodes={job.nodes}", "--format=%N %t")
    try:
        lines = run_command(*words, patience=patience).splitlines()
    except SlurmError:
        return ""
    return ", ".join(dict.fromkeys(name for name, state in map(str.split, lines) if state.startswith(_GIVEN_UP)))


def seconds_until(moment: str) -> float:
    """Return the seconds until a local time in Slurm's format; infinite if unknown."""
    try:
        return time.mktime(time.strptime(moment, "%Y-%m-%dT%H:%M:%S")) - time.time()
    except ValueError:
        return math.inf


def step_command(job: str, node: str) -> list[str]:
    """Return the argv prefix to run on one node of a job (``7``) or part (``7+1``).

    It has all the job's resources there, whatever variables say of those of its tasks.
    ``--unbuffered``: otherwise srun holds bytes back until a line is complete. Steps overlap, because tasks are not
    steps of their own.
    """
    about = ["--overlap", "--whole", "--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none"]
    number, _, part = job.partition("+")
    if part:
        about.append(f"--het-group={part}")
    if gpus := _gpus_for_steps(number).get(node):
        about.append(gpus)
    unset = [word for name in sorted(os.environ) if _OF_TASKS.fullmatch(name) for word in ("-u", name)]
    return ["env", *unset, "srun", f"--jobid={number}", f"--nodelist={node}", *about, "--unbuffered", "--quiet"]


@functools.cache
def _gpus_for_steps(job: str) -> dict[str, str]:
    """Return the option for all GPUs of a node, if a job asks in all or by task.

    A step of such a job would inherit that, and ask its node for more than this has, or for less. `--gpus` overrides it
    in Slurm 22.05; in 24.11 such a step never starts on a node with fewer GPUs than the first.
    """
    try:
        asked = show("job", job)
        if "gpu" not in asked.get("TresPerJob", "") + asked.get("TresPerTask", ""):
            return {}
        version = re.search(r"\d+", run_command("srun", "--version"))
        option = "--gpus-per-node" if version and int(version[0]) >= _GPUS_PER_NODE else "--gpus"
        return {node: f"{option}={gpus}" for node, gpus in gpus_of_nodes(job).items()}
    except SlurmError:
        return {}


def gpus_of_nodes(job: str) -> dict[str, int]:
    """Return a job's GPUs by node, {} without any; raises as `run_command`."""
    shown = run_command("scontrol", "--oneliner", "--details", "show", "job", job)
    gpus: dict[str, int] = {}
    for nodes, resources in _GPUS_OF_NODE.findall(shown):
        if counts := _GPUS.findall(resources):
            gpus |= dict.fromkeys(host_names(nodes), sum(map(int, counts)))
    return gpus


def host_names(nodes: str) -> list[str]:
    """Return the names in a list of nodes such as ``n[1-3]``; raises as `run_command`."""
    return run_command("scontrol", "show", "hostnames", nodes).split()


def note_job(directory: Path, job: str) -> None:
    """Record the job ID of a run."""
    write_note(directory / _JOB_NAME, _Note(job))


def job_of(directory: Path) -> str | None:
    """Return the job ID of a run, None if it is not a Slurm job."""
    note = read_note(_Note, directory / _JOB_NAME)
    return None if note is None else note.job


def note_life(directory: Path, restarts: int) -> None:
    """Record that the job has begun, after being restarted ``restarts`` times."""
    private_files.write_text(directory / _LIFE_NAME, str(restarts))


def life_of(directory: Path) -> int:
    """Return how often the job had been restarted when it last began the run, or -1."""
    try:
        return int((directory / _LIFE_NAME).read_text())
    except (OSError, ValueError):
        return -1


def began_at(directory: Path) -> float:
    """Return when the job's current execution began, in seconds since the epoch."""
    return (directory / _LIFE_NAME).stat().st_mtime


def earlier_lives(directory: Path) -> list[Path]:
    """Return the directories with files of the job's earlier executions, oldest first."""
    found = [path for path in directory.glob(f"{EARLIER}*") if path.name.removeprefix(EARLIER).isdecimal()]
    return sorted(found, key=lambda path: int(path.name.removeprefix(EARLIER)))


def has_begun(directory: Path, job: SlurmJob) -> bool:
    """Return whether the job's current execution has, or had at its end, a journal."""
    return life_of(directory) >= job.restarts


def current_job(directory: Path) -> SlurmJob | None:
    """Return the state of a run's unfinished job, or None; raises as `run_command`."""
    note = read_note(_Note, directory / _JOB_NAME)
    if note is None or note.is_over:
        return None
    job = find_job(note.job)
    if job is not None and not job.is_over:
        return job
    with suppress(OSError):  # it only saves asking Slurm again
        write_note(directory / _JOB_NAME, note._replace(is_over=True))
    return None


def find_runs(settings: Sequence[str]) -> list[Path]:
    """Return this user's run directories in Slurm; links for another TFLAUNCH_HOME.

    Raises:
        TflaunchError: Slurm does not tell them, or this machine has none.
    """
    try:
        comments = run_command("squeue", f"--user={os.getuid()}", "--noheader", "--format=%k")
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
