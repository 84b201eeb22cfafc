"""Keep setups on a host, a directory for each content, below tflaunch's home.

A directory has a lock, the log of the last build, and builds, each with a random name that is never used again. A link,
the *mark*, names the build that is whole. It is made by one atomic step when its build has ended well, and no process
of it is left. Whatever is killed at whatever moment: what it leaves is a build without a mark, which nothing uses, and
which the next build removes. So a process that has survived can damage nothing that is used. Builds never move: scripts
in virtual environments name their interpreter by its path.

Whoever builds or removes holds the lock alone, and an agent whose tasks use a build shares it with others.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress

from tflaunch_worker import file_trees

PLACE = "setups"
"""The directory inside tflaunch's home on the host."""

LOG = "log"
BUILD = "build-"
"""Prefix of the names of builds."""

_LOCK, _MARK = "lock", "ready"
_MONTH = 30 * 86400.0


def marked(place: str) -> str:
    """Return the name of the build that is whole, "" for none."""
    try:
        return os.readlink(os.path.join(place, _MARK))
    except OSError:
        return ""


def mark(place: str, build: str) -> None:
    """Make a build the one that is used; raise `OSError` if the disk is full."""
    new = os.path.join(place, f"{_MARK}.{build}")
    os.symlink(build, new)
    os.replace(new, os.path.join(place, _MARK))


def open_lock(place: str) -> int:
    """Return a descriptor of the free lock; raise OSError if the directory is gone."""
    return os.open(os.path.join(place, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def take(lock: int, place: str, how: int = fcntl.LOCK_EX) -> bool | None:
    """Take the lock if it is free; None: the directory was removed and made again."""
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    with suppress(FileNotFoundError):
        if os.stat(os.path.join(place, _LOCK)).st_ino == os.fstat(lock).st_ino:
            return True
    return None


def use(place: str, build: str) -> int | None:
    """Keep a build until the returned descriptor is closed; None: there is none."""
    with suppress(OSError):
        lock = open_lock(place)
        if take(lock, place, fcntl.LOCK_SH) and marked(place) == build:
            os.utime(place)
            return lock
        os.close(lock)
    return None


def forget_old(home: str) -> None:
    """Remove what no run has used for a month."""
    places = os.path.join(home, PLACE)
    for name in os.listdir(places):
        place = os.path.join(places, name)
        with suppress(OSError):  # another run was faster
            if os.lstat(place).st_mtime >= time.time() - _MONTH:
                continue
            lock = open_lock(place)
            if take(lock, place):
                gone = os.path.join(places, f".pruned-{name}")
                os.rename(place, gone)  # at once: a process that waits for the lock begins with a new directory
                file_trees.remove_tree(gone)
            os.close(lock)
