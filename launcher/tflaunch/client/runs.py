"""Find the runs on this machine, and tell which of them are live."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tflaunch.client.run_location import locate_run
from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, SupervisedElsewhereError, TflaunchError
from tflaunch.store import run_names
from tflaunch.store.run_dir import open_run, runs_directory
from tflaunch_worker import LOCK_NAME as AGENT_LOCK_NAME
from tflaunch_worker import linux, orphans

if TYPE_CHECKING:
    from tflaunch.plan.model import Plan

_SHOWN = 8
_NO_RUNS = "there are no runs in {} ($TFLAUNCH_HOME/runs); `tflaunch up SPEC` starts one"


def find_run(name: str | None) -> Path:
    """Return the directory of the run that matches: the live one of several, or else the newest.

    Args:
        name: the run's name, its job's name, or a prefix of the run's name; None for any run.

    Raises:
        TflaunchError: no run matches, several live runs match, or another user could have written to its directory.
        SupervisedElsewhereError: the run has its supervisor and its files in a cluster.
    """
    known = run_names.newest_first()
    found = known if name is None else _matching(known, name)
    if not found:
        there_are = f"the runs are {_listed(known)}" if known else _NO_RUNS.format(runs_directory())
        if name is None:
            raise TflaunchError(there_are, EXIT_USAGE)
        what = f"{name!r} is a task, not a run" if ":" in name else f"there is no run {name!r}"
        raise TflaunchError(f"{what}; {there_are}", EXIT_USAGE)
    if len(found) == 1:
        return _opened(found[0])
    live = [path for path in found if is_live(path)]
    if len(live) > 1:
        several = "several runs" if name is None else f"several runs that match {name!r}"
        raise TflaunchError(f"{several} are live; name one of them: {_listed(live)}", EXIT_USAGE)
    return _opened((live or found)[0])


def run_before(path: Path) -> Path:
    """Return the directory of the run of the same job that began before this one.

    Raises:
        TflaunchError: there is none, or another user could have written to its directory.
        SupervisedElsewhereError: that run has its supervisor and its files in a cluster.
    """
    job = run_names.job_name(path.name)
    of_job = [each for each in run_names.newest_first() if run_names.job_name(each.name) == job]
    before = of_job[of_job.index(path) + 1 :]
    if not before:
        raise TflaunchError(f"{path.name} is the first run of {job}: name another one", EXIT_USAGE)
    return _opened(before[0])


def _opened(path: Path) -> Path:
    open_run(path)
    if not locate_run(path).has_files_here:
        raise SupervisedElsewhereError(path)
    return path


def _matching(known: list[Path], name: str) -> list[Path]:
    """Return the run with this name, else the runs of the job with this name, else those with this prefix."""
    of_run = [path for path in known if path.name == name]
    of_job = [path for path in known if run_names.job_name(path.name) == name]
    return of_run or of_job or [path for path in known if name and path.name.startswith(name)]


def plan_of(path: Path) -> Plan:
    """Return the plan of the run in a directory.

    Raises:
        TflaunchError: it has no readable plan.
    """
    from tflaunch.core import replay
    from tflaunch.store.journal import not_begun, readable
    from tflaunch.store.journal_reader import first_record

    first = first_record(path)
    if first is None:
        waits = locate_run(path).describe_wait()
        raise TflaunchError(waits, EXIT_INTERNAL) if waits else not_begun(path)
    with readable(path):
        return replay.recorded_plan(first)


def is_live(path: Path) -> bool:
    """Return whether a run has a supervisor, or something that will start one, such as a batch job.

    Args:
        path: the run's directory.
    """
    return locate_run(path).is_live()


def has_agent(path: Path) -> bool:
    """Return whether an agent of a run lives on this machine.

    Args:
        path: the run's directory.
    """
    return any(linux.is_lock_free(str(lock)) is False for lock in path.glob(f"agents/*/{AGENT_LOCK_NAME}"))


def kill_orphans(path: Path) -> None:
    """Kill the processes left on this machine by a run whose supervisor, agent and guard were killed.

    For any other run this only lists its directory, as a guard that exits by itself removes its lock.

    Args:
        path: the run's directory.
    """
    for lock in path.glob(f"agents/*/{AGENT_LOCK_NAME}"):
        if linux.is_lock_free(str(lock)):
            orphans.sweep(str(lock.parent))


def _listed(paths: list[Path]) -> str:
    shown = ", ".join(path.name for path in paths[:_SHOWN])
    return shown if len(paths) <= _SHOWN else f"{shown} and {len(paths) - _SHOWN} more"
