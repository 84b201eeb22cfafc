"""Count the cores that the tasks of this host may use together."""

from __future__ import annotations

import os

_QUOTA = "/sys/fs/cgroup/cpu.max"
_OLD_QUOTA = "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"
_OLD_PERIOD = "/sys/fs/cgroup/cpu/cpu.cfs_period_us"


def usable() -> int:
    """Return the number of cores for this process, by affinity and container quota."""
    cores = len(os.sched_getaffinity(0))
    quota = _cgroup_quota()
    return max(1, min(cores, int(quota))) if quota else cores


def _cgroup_quota() -> float | None:
    """Return the number of cores that the cgroup grants, or None for no limit."""
    try:
        quota, period = _read(_QUOTA).split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        old_quota = int(_read(_OLD_QUOTA))
        return old_quota / int(_read(_OLD_PERIOD)) if old_quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()
