"""Find and remove synced code, images, setups, copies of drills, and other agents."""

import fcntl
import os
import re
import stat
import time
from pathlib import Path
from typing import NamedTuple

from tflaunch import private_files
from tflaunch.client import runs
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.features import bootstrap
from tflaunch.features.file_tree import delete_run, is_directory, tree_size
from tflaunch.features.prune import drills
from tflaunch.store import run_dir
from tflaunch_worker import FILES_NAME, linux

KINDS = {
    "code": (FILES_NAME, "cached files of synced code"),
    "image": ("images", "images that were pulled for Slurm"),
    "setup": ("setups", "environments that `setup` has made"),
    "agent": ("agents", "cached agents of other versions"),
    "drill": (drills.PLACE, "copies of directories, of drills"),
}
"""Kinds of what is cached: where below TFLAUNCH_HOME, and what it is."""
_FILES = ("code", "image")
_NAME = re.compile(r"(\.pruned-)*([0-9a-z]{64})(\.new)?|.*\.sif", re.ASCII)  # `.new`: `boot` was unpacking it
PATIENCE = 86_400.0
"""Seconds for which what is cached is kept, whatever the retention: an agent that uses it may be starting."""


class Cached(NamedTuple):
    """An entry of a cache; ``kind`` is one of `KINDS`."""

    kind: str
    path: Path
    size: int


def find_cached(older_than: float, now: float) -> list[Cached]:
    """Find what is unused for some seconds, at least `PATIENCE`, or of a killed drill."""
    limit = now - max(older_than, PATIENCE)
    home = run_dir.home()
    return [
        Cached(kind, path, tree_size(path) if path.is_dir() else path.lstat().st_blocks * 512)
        for kind, (place, _) in KINDS.items()
        for path in sorted(home.glob(f"{place}/*"))
        if is_directory(path.parent) and _is_unused(kind, path, limit)
    ]


def remove_cached(cached: Cached) -> bool:
    """Remove an entry; return false if it is in use again, or gone already.

    Raises:
        TflaunchError: it cannot be removed.
    """
    path, limit = cached.path, time.time() - PATIENCE
    try:
        if not _is_unused(cached.kind, path, limit):
            return False
        if cached.kind == "drill" and drills.runs_of(path):  # which are found by it
            return False
        if cached.kind in _FILES:
            path.unlink()
            return True
        # Agents share the lock in a setup while their tasks use it; `boot` holds that beside agents to unpack one.
        is_agent = cached.kind == "agent"
        with open(path.with_name("lock") if is_agent else path / "lock", "ab") as lock:
            # no limit: the user waits for `boot`, and can press Ctrl-C
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if is_agent else fcntl.LOCK_NB))
            if is_agent and not _is_unused(cached.kind, path, limit):
                return False
            delete_run(path)
    except (FileNotFoundError, BlockingIOError):
        return False
    except OSError as error:
        raise TflaunchError(f"{error.filename or path}: {error.strerror}", EXIT_INTERNAL) from None
    return True


def _is_unused(kind: str, path: Path, limit: float) -> bool:
    """Return whether something of this user in a cache has not been used since a time."""
    status = path.lstat()
    is_drill = kind == "drill"
    is_old = status.st_mtime < limit or (is_drill and drills.is_left(path))
    is_of_kind = stat.S_ISREG(status.st_mode) if kind in _FILES else stat.S_ISDIR(status.st_mode)
    if status.st_uid != os.geteuid() or not (is_old and is_of_kind and (is_drill or _NAME.fullmatch(path.name))):
        return False
    private_files.require_own(path.parent)
    if kind != "agent":
        return kind in _FILES or linux.is_lock_free(str(path / "lock")) is not False
    # A living agent may be one of these, and import from there.
    is_current = path.name == bootstrap.build_archive().sha256
    return not is_current and not any(map(runs.has_agent, run_dir.newest_first()))
