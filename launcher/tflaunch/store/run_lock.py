"""The lock of a run, which its supervisor holds as long as it lives.

The kernel releases the lock when the process ends, for whatever reason.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from tflaunch.errors import EXIT_INTERNAL, EXIT_USAGE, TflaunchError
from tflaunch_worker import linux

LOCK_NAME = "lock"
"""The lock file in a run's directory."""


def take_lock(path: Path) -> int:
    """Take a run's lock until the descriptor is closed or this process ends.

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
        raise already_supervised(path)
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


def is_locked(path: Path) -> bool:
    """Return whether a supervisor holds a run's lock, without keeping the lock."""
    try:
        _share(path, fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)  # any other: there is no lock, or a file system without locks
    return False


def wait_for_end(path: Path) -> None:
    """Wait for the exit of a run's supervisor, which reports the run's end before it."""
    with suppress(OSError):
        _share(path)


def _share(path: Path, flags: int = 0) -> None:
    """Take a run's lock beside other readers, and release it."""
    descriptor = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | flags)  # no limit: without LOCK_NB, the end of a run is awaited
    finally:
        os.close(descriptor)


def already_supervised(path: Path) -> TflaunchError:
    """Return the error of a second supervisor for a run."""
    message = f"run {path.name} has a supervisor already; to follow it: tflaunch attach {path.name}"
    return TflaunchError(message, EXIT_USAGE)
