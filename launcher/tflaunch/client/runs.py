"""Find runs, and tell whether they live, have ended or were killed."""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch.agents.snapshot import AgentSnapshot, look_at
from tflaunch.client.run_location import locate_run
from tflaunch.core import replay
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, SupervisedElsewhereError, TflaunchError
from tflaunch.explain.wording import listed
from tflaunch.plan.model import Plan
from tflaunch.store import run_dir
from tflaunch.store.journal import first_and_last_record, first_record, not_begun, readable
from tflaunch.transport.connect import connectors_for
from tflaunch_worker import LOCK_NAME as AGENT_LOCK_NAME
from tflaunch_worker import linux, orphans
from tflaunch_worker.readable import duration_words

_NO_RUNS = "there are no runs in {} ($TFLAUNCH_HOME/runs); `tflaunch up SPEC` starts one"


def find_run(name: str | None = None) -> Path:
    """Return the matching run's directory: the live one, or else the newest.

    Args:
        name: the run's name, its job's name, or a prefix of the run's name; None for any run.

    Raises:
        TflaunchError: no run matches, several live runs match, or another user could have written to its directory.
        SupervisedElsewhereError: the run has its supervisor and its files in a cluster.
    """
    known = run_dir.newest_first()
    found = known if name is None else _matching(known, name)
    if not found:
        names = listed([path.name for path in known])
        there_are = f"the runs are {names}" if names else _NO_RUNS.format(run_dir.runs_directory())
        if name is None:
            raise TflaunchError(there_are, EXIT_USAGE)
        what = f"{name!r} is a task, not a run" if ":" in name else f"there is no run {name!r}"
        raise TflaunchError(f"{what}; {there_are}", EXIT_USAGE)
    if len(found) == 1:
        return _opened(found[0])
    live = [path for path in found if is_live(path)]
    if len(live) > 1:
        several = "several runs" if name is None else f"several runs that match {name!r}"
        raise TflaunchError(f"{several} are live; name one of them: {listed([path.name for path in live])}", EXIT_USAGE)
    return _opened((live or found)[0])


def _opened(path: Path) -> Path:
    run_dir.open_run(path)
    if not locate_run(path).has_files_here:
        raise SupervisedElsewhereError(path)
    return path


def _matching(known: list[Path], name: str) -> list[Path]:
    """Return the run, else the runs of the job, else those that begin with this name."""
    of_run = [path for path in known if path.name == name]
    of_job = [path for path in known if run_dir.job_name(path.name) == name]
    return of_run or of_job or [path for path in known if name and path.name.startswith(name)]


def plan_of(path: Path) -> Plan:
    """Return the plan of the run in a directory, or raise `TflaunchError`."""
    first = first_record(path)
    if first is None:
        waits = locate_run(path).describe_wait()
        raise TflaunchError(waits, EXIT_INTERNAL) if waits else not_begun(path)
    with readable(path):
        return replay.recorded_plan(first)


class Outcome(Enum):
    """Whether a run lives, and if not, whether its end is recorded."""

    LIVE = "live"
    """It has a supervisor, or something that will start one, such as a batch job."""
    ENDED = "ended"
    """It has ended, with an exit code."""
    LOST = "lost"
    """Its supervisor was killed; its tasks may run until their lease expires."""


class RunEnd(NamedTuple):
    """How a run ended: exit code, state, what was not stored, why ("" in old runs)."""

    exit_code: int
    state: str
    losses: list[str]
    because: str


def is_live(path: Path) -> bool:
    """Return whether a run has a supervisor, or something that will start one."""
    return locate_run(path).is_live()


def read_end(record: Mapping[str, Any]) -> RunEnd | None:
    """Return the end that a record of a journal tells; None if it is another record."""
    if record["kind"] != "ended":
        return None
    state, losses = str(record.get("state") or "failed"), record.get("losses") or []
    return RunEnd(int(record["exit_code"]), state, losses, str(record.get("because") or ""))


def end_of(path: Path) -> RunEnd | None:
    """Return how a run has ended, from its last record; None if that tells none."""
    ends = first_and_last_record(path)
    return None if ends is None else read_end(ends[1])


def outcome_of(path: Path) -> Outcome | None:
    """Return whether a run lives, has ended or is lost; None before it begins."""
    if is_live(path):  # before the journal is read, as the run may end in between
        return Outcome.LIVE
    ends = first_and_last_record(path)
    if ends is None:
        return None
    return Outcome.LOST if read_end(ends[1]) is None else Outcome.ENDED


class NoSupervisorError(TflaunchError):
    """A run has no supervisor (any more); the message says how it has ended."""

    def __init__(self, path: Path, remedy: str = "") -> None:
        """``remedy`` follows the message about a run that has ended."""
        super().__init__("", EXIT_USAGE)
        self._path = path
        self._remedy = remedy

    def __str__(self) -> str:
        # Made when it is shown: it may ask the hosts of the run, and most callers only need to know that there is none.
        try:
            end = end_of(self._path)
            if end is None:
                return describe_loss(self._path)
        except TflaunchError as error:
            return str(error)
        return f"run {self._path.name} has ended with exit code {end.exit_code}{self._remedy}"


def describe_loss(path: Path) -> str:
    """Return a sentence about a run whose end is not recorded."""
    if loss := locate_run(path).describe_loss():
        return loss
    run, lease = path.name, plan_of(path).lease
    if not any((path / name).exists() for name in (run_dir.SOCKET_NAME, run_dir.RESERVE_NAME)):
        # Only a supervisor that ends by itself removes them.
        return f"{run} has ended, but the last records of its journal are lost: there was no room for them"
    if lease == 0:
        return f"the supervisor of {run} was killed, and its tasks with it; start its spec again"
    seen = look_at_hosts(path).values()
    lives = [host.lease_left for host in seen if host.tasks]
    left = max(lives, default=0.0) if all(host.tasks is not None for host in seen) else None
    rest = "and its tasks have ended" if left == 0 else f"its tasks live on for {duration_words(left or lease)}"
    return f"the supervisor of {run} was killed{',' if left == 0 else ';'} {rest}: tflaunch up --resume {run}"


def look_at_hosts(path: Path) -> Mapping[str, AgentSnapshot]:
    """Ask a run's agents, by host; this also kills what killed agents have left."""
    return look_at(connectors_for(plan_of(path), path))


def has_agent(path: Path) -> bool:
    """Return whether an agent of the run in a directory lives on this machine."""
    return any(linux.is_lock_free(str(lock)) is False for lock in path.glob(f"agents/*/{AGENT_LOCK_NAME}"))


def kill_orphans(path: Path) -> None:
    """Kill what a run has left here whose supervisor, agent and guard were killed.

    For any other run this only lists its directory, as a guard that exits by itself removes its lock.
    """
    for lock in path.glob(f"agents/*/{AGENT_LOCK_NAME}"):
        if linux.is_lock_free(str(lock)):
            orphans.sweep(str(lock.parent))
