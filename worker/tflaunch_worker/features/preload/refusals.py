"""Records of imports that forbid forks, so that later runs do not repeat them.

A record holds for an interpreter, modules and environment, and for a day, unless a package is installed or removed
before: each of these changes a directory of ``sys.path``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Dict, Iterable, Optional

Places = Dict[str, Optional[int]]
"""Directory to when an entry of it was last added or removed, in nanoseconds; None if it does not exist."""

_SUFFIX = ".refused"
_VALID = 24 * 3600.0  # seconds
_LONGEST = 64 * 1024  # bytes


def record_path(directory: str, key: str) -> str:
    """Return the path of the record about tasks with a key, a hexadecimal hash."""
    return os.path.join(directory, key[:16] + _SUFFIX)


def search_places(path: Iterable[str] | None = None) -> Places:
    """Return the change times of directories, by default of those on ``sys.path``."""
    return {place: _change_time(place) for place in (sys.path if path is None else path)}


def remember(path: str, reason: str, places: Places) -> None:
    """Record why no task can be forked, with the directories' state before imports.

    Without a reason, or with the path "", nothing is recorded.
    """
    if not (path and reason):
        return
    directory = os.path.dirname(path)
    draft = f"{path}.{os.getpid()}"
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        for entry in os.scandir(directory):
            if _SUFFIX in entry.name and _is_old(entry.stat().st_mtime):
                os.unlink(entry.path)
        with open(draft, "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump({"reason": reason, "places": places}, file)
        os.replace(draft, path)
    except OSError:
        pass  # the next run finds out for itself


def recall(path: str) -> str:
    """Return the recorded reason if it still holds, else ""; also for the path ""."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            record = json.loads(file.read(_LONGEST))
            is_old = _is_old(os.fstat(file.fileno()).st_mtime)
        reason, places = str(record["reason"]), record["places"]
        return "" if is_old or search_places(places) != places else reason
    except (OSError, ValueError, LookupError, TypeError):
        return ""  # there is none, or what is there is not ours


def _change_time(place: str) -> int | None:
    try:
        return os.stat(place).st_mtime_ns
    except OSError:
        return None


def _is_old(written: float) -> bool:
    return not 0 <= time.time() - written < _VALID
