"""The runs on this machine: where they are, and which of them are live.

A run is live as long as its supervisor holds the lock in its directory. The kernel lets go of a lock with
the process, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch.slurm import batch
from tflaunch.store.run_dir import open_run, runs_directory
from tflaunch_worker import LOCK_NAME as AGENT_LOCK_NAME
from tflaunch_worker import linux, orphans

LOCK_NAME = "lock"
"""In the directory of a run; its supervisor holds it."""
_SHOWN = 8


def find(name: str | None) -> Path:
    """Return the directory of a run: of those that match, the live one, else the newest.

    Args:
        name: the run's name, the name of its job, or a beginning of it; None for any run.

    Raises:
        TflaunchError: no run matches, several live ones do, or another user could have written to its directory.
    """
    known = newest_first()
    found = known if name is None else _matching(known, name)
    if not found:
        there_are = f"the runs are {_listed(known)}" if known else f"there are no runs in {runs_directory()}"
        raise TflaunchError(there_are if name is None else f"there is no run {name!r}; {there_are}", EXIT_USAGE)
    if len(found) == 1:
        return open_run(found[0])
    live = [path for path in found if is_live(path)]
    if len(live) > 1:
        several = "several runs" if name is None else f"several runs that match {name!r}"
        raise TflaunchError(f"{several} are live; name one of them: {_listed(live)}", EXIT_USAGE)
    return open_run((live or found)[0])


def _matching(known: list[Path], name: str) -> list[Path]:
    """The runs with a name: the run that is called so, else those of the job that is, else those that begin so."""
    of_run = [path for path in known if path.name == name]
    of_job = [path for path in known if _job_name(path.name) == name]
    return of_run or of_job or [path for path in known if name and path.name.startswith(name)]


def newest_first() -> list[Path]:
    """Return the directories of all runs.

    Raises:
        TflaunchError: they cannot be listed, or another user could have put runs there.
    """
    runs = runs_directory()
    try:
        with os.scandir(runs) as entries:
            found = [(entry.stat().st_mtime_ns, entry.name) for entry in entries if _is_run(entry)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TflaunchError(f"{error.filename}: {error.strerror}", EXIT_INTERNAL) from None
    # A name holds the second of its run's start; what its directory went through later says less.
    return [runs / run for _, run in sorted(found, key=lambda pair: (_start(pair[1]), pair), reverse=True)]


def is_live(path: Path) -> bool:
    """Whether a run has a supervisor: one that holds its lock, or a job of Slurm that may be on another machine.

    Args:
        path: the run's directory.
    """
    return _is_locked(path) or batch.is_active(path)


def _is_locked(path: Path) -> bool:
    """Whether a supervisor holds the lock of a run; looking does not take it."""
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


def take(path: Path) -> int:
    """Take the lock of a run until the returned descriptor is closed, at the latest with this process.

    Args:
        path: the run's directory.

    Raises:
        TflaunchError: another supervisor has it, or there can be no lock.
    """
    try:
        descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise TflaunchError(f"{path / LOCK_NAME}: {error.strerror}", EXIT_INTERNAL) from None
    try:
        _lock(descriptor)
    except BlockingIOError:
        os.close(descriptor)
        raise TflaunchError(f"run {path.name} has a supervisor already", EXIT_USAGE) from None
    except OSError as error:
        os.close(descriptor)
        raise TflaunchError(f"{path / LOCK_NAME}: {error.strerror}", EXIT_INTERNAL) from None
    return descriptor


def kill_orphans(path: Path) -> None:
    """Kill what is left on this machine of a run whose supervisor, agent and guard were killed.

    Without such a run this costs a look into its directory: a guard that ends by itself removes its lock.

    Args:
        path: the run's directory.
    """
    for lock in path.glob(f"agents/*/{AGENT_LOCK_NAME}"):
        if linux.is_lock_free(str(lock)):
            orphans.sweep(str(lock.parent))


def wait_for_end(path: Path) -> None:
    """Wait until no process is the supervisor of a run any more; who has told of the end may still be ending.

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


def _lock(descriptor: int) -> None:
    """Take a lock for ourselves alone; somebody who only looks holds it for a moment."""
    for _ in range(20):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.005)
        else:
            return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_run(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")


def _start(name: str) -> str:
    """The date and time in a run's name, "" if there is none."""
    return "".join(_parts(name)[1:3])


def _job_name(name: str) -> str:
    """The name of a run's job."""
    return _parts(name)[0]


def _parts(name: str) -> list[str]:
    """A run's name as job, date, time and random digits; where it is not made of these, as it is."""
    parts = name.rsplit("-", 3)
    return parts if len(parts) == 4 and "".join(parts[1:3]).isdigit() else [name]


def _listed(paths: list[Path]) -> str:
    shown = ", ".join(path.name for path in paths[:_SHOWN])
    return shown if len(paths) <= _SHOWN else f"{shown} and {len(paths) - _SHOWN} more"
