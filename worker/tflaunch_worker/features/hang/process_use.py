"""Measure what a process has used so far: CPU time, and time in which its threads waited for a CPU.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os
import time
from typing import Any

from tflaunch_worker import procfs

_TICKS = os.sysconf("SC_CLK_TCK")
_CPU_CLOCK = 2  # CPUCLOCK_SCHED, of the process whose complement is in the upper bits: see clock_getcpuclockid(3)
_SCHEDSTAT = 200  # bytes of a line


def use_of(pid: int) -> dict[str, Any]:
    """Return what a process has used since it began.

    ``cpu_seconds`` is its CPU time; ``cpu_wait`` how many seconds its living threads waited for a CPU, in sum, None if
    the kernel does not tell.
    """
    return {"cpu_seconds": _cpu_seconds(pid), "cpu_wait": cpu_wait(pid)}


def _cpu_seconds(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | _CPU_CLOCK)
    except OSError:
        return 0.0  # it is gone


def cpu_wait(pid: int) -> float | None:
    """Return for how many seconds the living threads of a process waited for a CPU, in sum; None if unknown."""
    found = None
    for thread in procfs.threads_of(pid):
        try:
            file = os.open(f"/proc/{pid}/task/{thread}/schedstat", os.O_RDONLY)  # a file object takes twice as long
        except OSError:
            continue  # it has ended
        words = os.read(file, _SCHEDSTAT).split()
        os.close(file)
        if len(words) > 1:
            found = (found or 0.0) + int(words[1]) / 1e9
    return found


def busy_seconds() -> float:
    """Return for how long the CPUs of this machine have worked, for any program, in sum."""
    words = (procfs.read("/proc/stat") or "cpu").partition("\n")[0].split()[1:9]
    times = [int(word) for word in words]
    return (sum(times) - sum(times[3:5])) / _TICKS  # without idle and iowait
