"""Find the runs on this machine, and tell which of them are live.

A run is live while its supervisor holds the lock in its directory. The kernel releases the lock when the process
ends, for whatever reason.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.kubernetes import launcher_note
from tflaunch.slurm import batch
from tflaunch.store import run_queue
from tflaunch.store.run_dir import open_run, runs_directory
from tflaunch_worker import LOCK_NAME as AGENT_LOCK_NAME
from tflaunch_worker import linux, orphans

if TYPE_CHECKING:
    from tflaunch.plan.model import Plan, RetentionPlan

LOCK_NAME = "lock"
"""The lock file in a run's directory, held by its supervisor."""
_SHOWN = 8
_NO_RUNS = "there are no runs in {} ($TFLAUNCH_HOME/runs); `tflaunch up SPEC` starts one"
_PARTS = 4  # of a run's name: job, date, time, random digits


def find_run(name: str | None) -> Path:
    """Return the directory of the run that matches: the live one of several, or else the newest.

    Args:
        name: the run's name, its job's name, or a prefix of the run's name; None for any run.

    Raises:
        TflaunchError: no run matches, several live runs match, or another user could have written to its directory.
        SupervisedElsewhereError: the run has its supervisor and its files in a cluster.
    """
    known = newest_first()
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


def _opened(path: Path) -> Path:
    open_run(path)
    launcher_note.require_here(path)
    return path


def _matching(known: list[Path], name: str) -> list[Path]:
    """Return the run with this name, else the runs of the job with this name, else those with this prefix."""
    of_run = [path for path in known if path.name == name]
    of_job = [path for path in known if job_name(path.name) == name]
    return of_run or of_job or [path for path in known if name and path.name.startswith(name)]


def newest_first() -> list[Path]:
    """Return the directories of all runs, newest first.

    Raises:
        TflaunchError: the runs cannot be listed, or another user could have put runs there.
    """
    runs = runs_directory()
    try:
        with os.scandir(runs) as entries:
            found = [(entry.stat().st_mtime_ns, entry.name) for entry in entries if _is_run(entry)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TflaunchError(f"{error.filename}: {error.strerror}", EXIT_INTERNAL) from None
    # A run's name contains its start time in seconds, which is more reliable than its directory's mtime.
    return [runs / run for _, run in sorted(found, key=lambda pair: (_start(pair[1]), pair), reverse=True)]


def newest_of_job(job: str) -> list[Path]:
    """Return the directories of a job's runs, the newest first."""
    return [path for path in newest_first() if job_name(path.name) == job]


def may_be_too_old(job: str, retention: RetentionPlan, now: float) -> list[Path]:
    """Return a job's runs but for the newest ``keep`` and those that began in the last ``older_than`` seconds.

    Their names tell; to find out when they ended takes milliseconds for each.
    """
    latest = time.strftime("%Y%m%d%H%M%S", time.localtime(max(now - retention.older_than, 0)))
    return [path for path in newest_of_job(job)[max(retention.keep, 1) :] if _start(path.name) <= latest]


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
        waits = batch.not_begun(path) or run_queue.not_begun(path)
        raise TflaunchError(waits, EXIT_INTERNAL) if waits else not_begun(path)
    with readable(path):
        return replay.recorded_plan(first)


def is_live(path: Path) -> bool:
    """Return whether a run has a supervisor: one holding its lock, or a job of Slurm or Kubernetes.

    Args:
        path: the run's directory.
    """
    return is_locked(path) or batch.is_active(path) or launcher_note.read_note(path) is not None


def is_locked(path: Path) -> bool:
    """Return whether a supervisor holds a run's lock, without keeping the lock."""
    try:
        descriptor = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def has_agent(path: Path) -> bool:
    """Return whether an agent of a run lives on this machine.

    Args:
        path: the run's directory.
    """
    return any(linux.is_lock_free(str(lock)) is False for lock in path.glob(f"agents/*/{AGENT_LOCK_NAME}"))


def has_supervisor(path: Path) -> str:
    """Return the sentence that refuses a second supervisor for a run."""
    return f"run {path.name} has a supervisor already; to follow it: tflaunch attach {path.name}"


def take_lock(path: Path) -> int:
    """Take a run's lock; it is held until the returned descriptor is closed or this process ends.

    Args:
        path: the run's directory.

    Raises:
        TflaunchError: another supervisor holds the lock, or the file cannot be locked.
    """
    try:
        descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise TflaunchError(f"{path / LOCK_NAME}: {error.strerror}", EXIT_INTERNAL) from None
    try:
        is_taken = linux.take_lock(descriptor)
    except OSError as error:
        os.close(descriptor)
        raise TflaunchError(f"{path / LOCK_NAME}: {error.strerror}", EXIT_INTERNAL) from None
    if not is_taken:
        os.close(descriptor)
        raise TflaunchError(has_supervisor(path), EXIT_USAGE)
    if not _is_at(descriptor, path / LOCK_NAME):
        os.close(descriptor)
        raise TflaunchError(f"run {path.name} has just been removed", EXIT_USAGE)
    return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def kill_orphans(path: Path) -> None:
    """Kill the processes left on this machine by a run whose supervisor, agent and guard were killed.

    For any other run this only lists its directory, as a guard that exits by itself removes its lock.

    Args:
        path: the run's directory.
    """
    for lock in path.glob(f"agents/*/{AGENT_LOCK_NAME}"):
        if linux.is_lock_free(str(lock)):
            orphans.sweep(str(lock.parent))


def wait_for_end(path: Path) -> None:
    """Wait until a run's supervisor has exited; it reports the run's end before it exits.

    Args:
        path: the run's directory.
    """
    try:
        descriptor = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError:
        pass  # a file system without locks
    finally:
        os.close(descriptor)


def _is_run(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")


def _start(name: str) -> str:
    """Return the date and time in a run's name, "" if there is none."""
    return "".join(_parts(name)[1:3])


def job_name(name: str) -> str:
    """Return the name of a run's job."""
    return _parts(name)[0]


def is_run_name(name: str) -> bool:
    """Return whether this is how `RunDirectory` names runs."""
    return len(_parts(name)) == _PARTS


def _parts(name: str) -> list[str]:
    """Split a run's name into job, date, time and random digits; a name of another form is one part."""
    parts = name.rsplit("-", 3)
    return parts if len(parts) == _PARTS and "".join(parts[1:3]).isdigit() else [name]


def _listed(paths: list[Path]) -> str:
    shown = ", ".join(path.name for path in paths[:_SHOWN])
    return shown if len(paths) <= _SHOWN else f"{shown} and {len(paths) - _SHOWN} more"
