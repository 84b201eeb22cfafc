"""Find and remove what is cached on this machine: synced code, agents and caches of other versions."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tflaunch import private_files
from tflaunch.client import runs
from tflaunch.client.file_tree import delete_tree, is_directory, tree_size
from tflaunch.errors import EXIT_INTERNAL, TflaunchError
from tflaunch.store import run_dir, run_names
from tflaunch.transport import bootstrap
from tflaunch_worker import FILES_NAME

_AGENTS_NAME = "agents"  # the cache of `tflaunch_worker.boot`, and its lock
_EARLIER = ("compiled", "plans")  # caches of compiled modules and plans, which 0.2 made
_UNPACKING = ".new"  # suffix of an agent that `boot` is unpacking, with the lock held
_SHA256_LENGTH = 64
PATIENCE = 86_400.0
"""Seconds for which what is cached is kept, whatever the retention: an agent that uses it may be starting."""


class Cached(NamedTuple):
    """Something in a cache on this machine: ``kind`` is ``code``, ``agent`` or ``compiled``."""

    kind: str
    path: Path
    size: int


def find_cached(older_than: float, now: float) -> list[Cached]:
    """Return what no agent has used for a number of seconds, but at least for `PATIENCE`."""
    limit = now - max(older_than, PATIENCE)
    return [*_old_code(limit), *_old_agents(limit), *_old_compiled(limit)]


def _old_code(limit: float) -> Iterator[Cached]:
    """Yield the files of synced code that no run has used since ``limit``; their mtime is when one last did."""
    for path in _own_entries(FILES_NAME):
        status = path.lstat()
        if _is_hash(path.name) and stat.S_ISREG(status.st_mode) and status.st_mtime < limit:
            yield Cached("code", path, status.st_blocks * 512)


def _old_agents(limit: float) -> Iterator[Cached]:
    """Yield the agents of other versions that were unpacked before ``limit``, if no living agent can be one of them."""
    found = [path for path in _own_entries(_AGENTS_NAME) if is_directory(path) and path.lstat().st_mtime < limit]
    if not found or _lives_any_agent():
        return
    current = bootstrap.build_archive().sha256
    for path in found:
        if _is_hash(path.name.removesuffix(_UNPACKING)) and path.name != current:
            yield Cached("agent", path, tree_size(path))


def _old_compiled(limit: float) -> Iterator[Cached]:
    """Yield the caches that earlier versions made before ``limit``."""
    for path in (run_dir.home() / name for name in _EARLIER):
        if is_directory(path) and path.lstat().st_mtime < limit:
            yield Cached("compiled", path, tree_size(path))


def _lives_any_agent() -> bool:
    return any(runs.has_agent(path) for path in run_names.newest_first())


def _own_entries(cache: str) -> list[Path]:
    """Return what is in a cache; nothing if there is none, or if it is not a directory of this user alone."""
    path = run_dir.home() / cache
    if not is_directory(path):
        return []
    private_files.require_own(path)
    return sorted(entry for entry in path.iterdir() if entry.lstat().st_uid == os.geteuid())


def _is_hash(name: str) -> bool:
    return len(name) == _SHA256_LENGTH and name.isalnum()


def remove_cached(cached: Cached) -> bool:
    """Remove something from a cache; return false if it is used again, or is gone already.

    Raises:
        TflaunchError: it cannot be removed.
    """
    limit = time.time() - PATIENCE
    try:
        if cached.path.lstat().st_mtime >= limit:
            return False
        if cached.kind == "code":
            cached.path.unlink()
            return True
        if cached.kind == "compiled":
            delete_tree(cached.path)
            return True
        return _remove_agent(cached.path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise TflaunchError(f"{error.filename or cached.path}: {error.strerror}", EXIT_INTERNAL) from None


def _remove_agent(path: Path) -> bool:
    """Remove an unpacked agent as `boot` replaces one, with its lock held; return false if an agent lives now."""
    with open(path.with_name("lock"), "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # no limit: the user waits for it, and can press Ctrl-C
        if _lives_any_agent():
            return False
        trash = path if path.name.endswith(_UNPACKING) else path.with_name(f"{path.name}{_UNPACKING}")
        if path != trash:
            if trash.exists():
                delete_tree(trash)
            path.rename(trash)
        delete_tree(trash)
    return True
