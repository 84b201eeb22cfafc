"""The local queue: runs wait for their machines, in the order of tickets.

A ticket is a file whose name begins with the time. It lists the runs of one process, which holds the file's lock until
it has begun them all; the kernel releases the lock when the process dies. A run waits while its directory has
`queued.json` and the ticket is locked. Its process begins it by taking the run's lock and renaming the file to
`begins.json`, which is removed once the run has a journal. `down` renames it, too: only one of them can.
"""

import fcntl
import functools
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, NamedTuple

from tflaunch import private_files
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.features.notes import read_note, write_note
from tflaunch.features.queue.queue_order import Share
from tflaunch.store.run_dir import JOURNAL_NAME, own_directory, runs_directory
from tflaunch_worker import linux

QUEUED, BEGINS, WITHDRAWN = "queued.json", "begins.json", "withdrawn.json"
"""The names of the file in a run's directory that says where the run is on its way through the queue."""
MOST_SLOTS = 1000
"""The highest number of runs at once on a machine."""

_REFUSED = "refused.json"
_SLOTS = "slots"
_LOCK = "lock"
_DIGITS = 20  # of a time in nanoseconds
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def _check_ticket(name: str, value: object) -> str:
    if isinstance(value, str) and re.fullmatch(rf"\d{{{_DIGITS}}}-\d+", value):
        return value
    raise ValueError(f"field {name!r} must be the name of a ticket")


class Entry(NamedTuple):
    """A run that waits, its needs of each machine, and its values of `--matrix`."""

    needs: Mapping[str, Share]
    values: Mapping[str, str]
    ticket: Annotated[str, _check_ticket]
    run: str

    @property
    def queued(self) -> float:
        """When it was queued, in seconds since 1970."""
        return int(self.ticket[:_DIGITS]) / 1e9


class Refusal(NamedTuple):
    """Why a run of the queue did not begin, and the exit code for it."""

    reason: str
    exit_code: int


def _queue_directory() -> Path:
    return own_directory("queue")


def _tickets_directory() -> Path:
    return _queue_directory() / "tickets"


# ---- runs that wait


def issue(runs: Sequence[tuple[Path, Mapping[str, Share], Mapping[str, str]]]) -> tuple[Path, int]:
    """Queue runs; return their ticket, and the descriptor that holds its lock.

    Raises:
        OSError: the disk is full, for instance.
    """
    directory = _tickets_directory()
    private_files.make_directories(directory)
    path = directory / f"{time.time_ns():0{_DIGITS}}-{os.getpid()}"
    descriptor = os.open(hidden := path.with_name(f".{path.name}"), _NEW_FILE, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before others see it: they remove a ticket without a lock
    with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
        file.writelines(f"{run.name}\n" for run, _, _ in runs)
    hidden.rename(path)
    for run, needs, values in runs:
        write_note(run / QUEUED, Entry(needs, values, path.name, run.name))
    return path, descriptor


def read_waiting() -> list[Entry]:
    """Return the runs that wait, the oldest first, and remove dead tickets."""
    directory = _tickets_directory()
    try:
        paths = sorted(directory / name for name in os.listdir(directory) if not name.startswith("."))
    except FileNotFoundError:
        return []
    waiting: list[Entry] = []
    for path in paths:
        if linux.is_lock_free(str(path)):
            path.unlink(missing_ok=True)
        else:
            waiting += filter(None, map(read_entry, _runs_of(path)))
    return waiting


def waits(run: Path) -> bool:
    """Return whether a run waits, and its process lives, given its directory."""
    entry = read_entry(run)
    return entry is not None and linux.is_lock_free(str(_tickets_directory() / entry.ticket)) is False


def read_entry(run: Path) -> Entry | None:
    """Return the entry of a run that waits, or has died waiting, else None."""
    # Each process of the queue reads all of them, again and again. One that is damaged never begins.
    return _read_entry(run) if os.path.lexists(f"{run}/{QUEUED}") else None


@functools.lru_cache(maxsize=10_000)
def _read_entry(run: Path) -> Entry | None:
    return read_note(Entry, run / QUEUED)


@functools.lru_cache(maxsize=10_000)
def _runs_of(ticket: Path) -> list[Path]:
    runs = runs_directory()
    try:
        return [runs / name for name in ticket.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []


# ---- how a run leaves the queue


def claim(run: Path, name: str) -> bool:
    """Rename the file of a run that waits; return False if another was first.

    Raises:
        OSError: the file system is read-only, for instance.
    """
    try:
        os.rename(run / QUEUED, run / name)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def leave(run: Path) -> None:
    """Remove a run that has begun, or is not to begin, from the queue."""
    for name in (QUEUED, BEGINS):
        (run / name).unlink(missing_ok=True)


def refuse(run: Path, refusal: Refusal) -> None:
    """Record that a run does not begin."""
    with suppress(OSError):  # the run has been deleted; or the disk is full, and the run counts as killed
        write_note(run / _REFUSED, refusal)
        leave(run)


def read_refusal(run: Path) -> Refusal | None:
    """Return why a run of the queue did not begin, None if it did, or waits."""
    return read_note(Refusal, run / _REFUSED)


def has_begun(run: Path) -> bool:
    """Return whether a run has a journal."""
    return os.path.lexists(run / JOURNAL_NAME)


# ---- the queue as a whole


@contextmanager
def deciding() -> Iterator[None]:
    """Hold the lock of those who decide."""
    descriptor = os.open(_queue_directory() / _LOCK, _NEW_FILE, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # no limit: another process holds it for a look, unless it is stopped
        yield
    finally:
        os.close(descriptor)


def read_slots() -> int:
    """Return how many runs may share a machine, beside those with their own GPUs."""
    try:
        return min(max(int((_queue_directory() / _SLOTS).read_text()), 1), MOST_SLOTS)
    except (OSError, ValueError):
        return 1


def write_slots(slots: int) -> None:
    """Set what `read_slots` returns.

    Raises:
        TflaunchError: it cannot be written.
    """
    try:
        path = _queue_directory()
        private_files.make_directories(path)
        private_files.replace_text(path / _SLOTS, str(slots))
    except OSError as error:
        raise TflaunchError(f"{error.filename}: {error.strerror}", EXIT_INTERNAL) from None
