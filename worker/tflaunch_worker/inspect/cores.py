"""Count the cores that the tasks of this host may use together."""

from __future__ import annotations

import os

from tflaunch_worker import procfs

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
    words = (procfs.read(_QUOTA) or "").split() or [procfs.read(path) or "" for path in (_OLD_QUOTA, _OLD_PERIOD)]
    try:
        quota, period = map(int, words)
    except ValueError:
        return None  # "max", or there is no such group
    return quota / period if quota > 0 and period > 0 else None
