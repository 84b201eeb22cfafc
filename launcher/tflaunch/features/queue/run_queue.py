"""The local queue: runs that have a directory, and begin once their machines are free.

An entry is a file in ``queue/waiting``, whose name is the time at which it was added, and the run. The run's directory
has the order: the plan, and the environment in which `up --queue` was typed. A run has begun if it has a journal; if it
has none, it begins when a process takes its lock. Its entry is removed after it has begun. So no run is lost or begins
twice, whichever process is killed at any moment.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tflaunch import private_files
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.features.queue import DIRECTORY_NAME
from tflaunch.features.queue.host_shares import Share
from tflaunch.store.run_dir import JOURNAL_NAME, home, runs_directory

DISPATCHER_LOCK = "lock"
"""The lock of the process that begins the runs of the queue, in the queue's directory."""
MOST_SLOTS = 1000
"""The highest number of runs at once on a machine."""

_ENTRY_NAME = "entry.json"
_ORDER_NAME = "queued.json"
_REFUSAL_NAME = "refused.json"
_SLOTS_NAME = "slots"
_DIGITS = 20  # of a time in nanoseconds


DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a damaged file raises."""


_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE)
"""Errors that say nothing about the file."""


class Entry(NamedTuple):
    """A run that waits.

    Attributes:
        run: its name.
        queued: when it was added, in seconds since 1970.
        needs: what it needs of each machine.
        values: the values with which `--matrix` has made it.
        path: the entry's file.
    """

    run: str
    queued: float
    needs: Mapping[str, Share]
    values: Mapping[str, str]
    path: Path


class Order(NamedTuple):
    """How to begin a run.

    Attributes:
        plan: the plan, as JSON.
        logs: the directory of the tasks' logs.
        extras: as in `RunConfig`.
        directory: the working directory of `up`.
        umask: its umask.
        environ: its environment.
        python: the interpreter of tflaunch.
        search_path: where that interpreter searches modules.
    """

    plan: dict[str, Any]
    logs: str
    extras: dict[str, Any]
    directory: str
    umask: int
    environ: dict[str, str]
    python: str
    search_path: list[str]


class Refusal(NamedTuple):
    """Why a run of the queue did not begin, and the exit code for it."""

    reason: str
    exit_code: int


def queue_directory() -> Path:
    """Return the directory of the queue.

    Raises:
        TflaunchError: another user could have put entries there.
    """
    path = home() / DIRECTORY_NAME
    try:
        private_files.require_own(path)
    except FileNotFoundError:
        pass  # created with the first entry
    except OSError as error:
        raise TflaunchError(f"{path}: {error.strerror}; set TFLAUNCH_HOME", EXIT_INTERNAL) from None
    return path


def waiting_directory() -> Path:
    """Return the directory of the entries; errors are those of `queue_directory`."""
    return queue_directory() / "waiting"


# ---- entries


def add_entry(run: Path, order: Order, needs: Mapping[str, Share], values: Mapping[str, str]) -> None:
    """Add a run, whose directory exists, at the end of the queue.

    Raises:
        TflaunchError: there is no room on the disk, or no permission.
    """
    try:
        waiting = waiting_directory()
        private_files.make_directories(waiting)
        private_files.write_text(run / _ORDER_NAME, json.dumps(order._asdict()))
        entry = {"needs": {name: share._asdict() for name, share in needs.items()}, "values": dict(values)}
        private_files.write_text(run / _ENTRY_NAME, json.dumps(entry), is_kept=True)
        (run / _ENTRY_NAME).rename(waiting / f"{time.time_ns():0{_DIGITS}}-{run.name}")
    except OSError as error:
        raise TflaunchError(f"{error.filename}: {error.strerror}", EXIT_INTERNAL) from None


def read_entries(known: Mapping[str, Entry] | None = None) -> tuple[dict[str, Entry], list[Path]]:
    """Return the entries by the names of their files, the oldest first, and the files that are damaged.

    Args:
        known: entries that were read before, and are not read again.

    Raises:
        TflaunchError: another user could have put entries there.
    """
    waiting, known = waiting_directory(), known or {}
    try:
        names = sorted(os.listdir(waiting))
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        raise TflaunchError(f"{error.filename}: {error.strerror}", EXIT_INTERNAL) from None
    found, damaged = {}, []
    for name in names:
        try:
            found[name] = known[name] if name in known else _read_entry(waiting / name)
        except FileNotFoundError:
            continue  # it has just begun, or was removed
        except DAMAGE as error:
            if getattr(error, "errno", None) in _PASSING:
                continue
            damaged.append(waiting / name)
    return found, damaged


def find_entry(run: str) -> Entry | None:
    """Return the entry of a run, None if it does not wait.

    Raises:
        TflaunchError: another user could have put entries there.
    """
    try:
        return next((_read_entry(path) for path in _entries_of(run)), None)
    except DAMAGE:
        return None


def is_listed(run: str) -> bool:
    """Return whether a run has an entry, be it damaged; errors are those of `find_entry`."""
    return bool(_entries_of(run))


def _entries_of(run: str) -> list[Path]:
    waiting = waiting_directory()
    try:
        return [waiting / name for name in os.listdir(waiting) if run_of(name) == run]
    except OSError:
        return []


def run_of(name: str) -> str:
    """Return the run that an entry is about, by the name of its file; "" if it is none."""
    return name[_DIGITS + 1 :] if re.fullmatch(rf"\d{{{_DIGITS}}}-[^/]+", name) else ""


def has_entries() -> bool:
    """Return whether a run waits."""
    try:
        return any(map(run_of, os.listdir(waiting_directory())))
    except (OSError, TflaunchError):
        return False


def remove_entry(run: str) -> None:
    """Take a run that has begun, or is not to begin, out of the queue; its order is deleted."""
    for path in _entries_of(run):
        try:
            path.unlink(missing_ok=True)
        except IsADirectoryError:  # that is damage, too
            path.rename(path.with_name(f".{path.name}"))
    try:
        (runs_directory() / run / _ORDER_NAME).unlink(missing_ok=True)
    except NotADirectoryError:
        pass


def _read_entry(path: Path) -> Entry:
    data = json.loads(path.read_bytes())
    needs = {str(name): _share(share) for name, share in data["needs"].items()}
    values = {str(name): str(value) for name, value in data["values"].items()}
    number, run = path.name[:_DIGITS], path.name[_DIGITS + 1 :]
    return Entry(run, int(number) / 1e9, needs, values, path)


def _share(data: dict[str, Any]) -> Share:
    gpus = data["gpus"]
    return Share(None if gpus is None else int(gpus), tuple(map(str, data["devices"])))


# ---- a run, which may be in the queue


def has_begun(run: Path) -> bool:
    """Return whether a run has a journal."""
    return os.path.lexists(run / JOURNAL_NAME)


def read_order(run: Path) -> Order:
    """Return the order of a run.

    Raises:
        TflaunchError: it is damaged.
    """
    try:
        return Order(**json.loads((run / _ORDER_NAME).read_bytes()))
    except DAMAGE as error:
        raise TflaunchError(f"{run / _ORDER_NAME} is damaged ({error}); start the spec again", EXIT_INTERNAL) from None


def refuse(run: Path, refusal: Refusal) -> None:
    """Record that a run does not begin."""
    try:
        private_files.write_text(run / f".{_REFUSAL_NAME}", json.dumps(refusal._asdict()))
        (run / f".{_REFUSAL_NAME}").rename(run / _REFUSAL_NAME)
    except OSError:
        pass  # the entry is removed all the same, else it would be tried again and again


def read_refusal(run: Path) -> Refusal | None:
    """Return why a run of the queue did not begin, None if it did, or waits."""
    try:
        data = json.loads((run / _REFUSAL_NAME).read_bytes())
        return Refusal(str(data["reason"]), int(data["exit_code"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def has_order(run: Path) -> bool:
    """Return whether a run was put into the queue, and has not left it."""
    return os.path.lexists(run / _ORDER_NAME)


# ---- the queue as a whole


def read_slots() -> int:
    """Return how many runs may be on a machine at once, apart from those that have GPUs of their own there."""
    try:
        return min(max(int((queue_directory() / _SLOTS_NAME).read_text()), 1), MOST_SLOTS)
    except (OSError, ValueError):
        return 1


def write_slots(slots: int) -> None:
    """Set what `read_slots` returns.

    Raises:
        TflaunchError: it cannot be written.
    """
    try:
        path = queue_directory()
        private_files.make_directories(path)
        private_files.write_text(path / f".{_SLOTS_NAME}", str(slots))
        (path / f".{_SLOTS_NAME}").rename(path / _SLOTS_NAME)
    except OSError as error:
        raise TflaunchError(f"{error.filename}: {error.strerror}", EXIT_INTERNAL) from None


def take_dispatcher_lock() -> int | None:
    """Take the lock of the dispatcher until the returned descriptor is closed; None if another process has it."""
    descriptor = os.open(
        queue_directory() / DISPATCHER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    for pause in (0.002, 0.01, 0.05, None):  # a process that only looks at the lock holds it for a moment
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
            return descriptor
        except BlockingIOError:
            if pause is not None:
                time.sleep(pause)
    os.close(descriptor)
    return None
