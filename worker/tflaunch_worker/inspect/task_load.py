"""Read what the processes of a task get from the kernel: CPU time, time in run queues, major faults and memory.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os
import time

from tflaunch_worker import linux

_PAGE = os.sysconf("SC_PAGE_SIZE")
_CPU_CLOCK = 2  # CPUCLOCK_SCHED, of the process whose complement is in the upper bits: see clock_getcpuclockid(3)
_CGROUPS = "/sys/fs/cgroup"
_SCHEDSTAT = 200  # bytes of a line
_FAULTS, _NICE = 9, 16  # fields of /proc/PID/stat, counted from the state


class Load:
    """What the processes of a task have got since they started.

    ``cpu`` and ``delay`` are seconds: CPU time, and the time in which threads were ready and had no CPU, None if the
    kernel does not tell. ``faults`` counts major page faults, ``throttled`` seconds in which a cgroup allowed no CPU.
    """

    def __init__(self) -> None:
        self.cpu = 0.0
        self.delay: float | None = None
        self.faults = 0
        self.throttled = 0.0
        self.nice = 0
        self.rss_bytes = 0


def load_of(pids: list[int], with_threads: bool) -> Load:
    """Return the load of these processes; ``with_threads``: also ``delay``, which takes 10 to 30 µs per thread."""
    load = Load()
    for pid in pids:
        stat = (linux.read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
        if not stat:
            continue  # it is gone
        load.cpu += _cpu_seconds(pid)
        load.faults += int(stat[_FAULTS])
        load.nice = max(load.nice, int(stat[_NICE]))
        load.rss_bytes += int(stat[21]) * _PAGE
        if with_threads:
            delay = _delay(pid)
            load.delay = load.delay if delay is None else (load.delay or 0.0) + delay
    if pids:
        load.throttled = _throttled(pids[0])
    return load


def rss_of(pids: list[int]) -> int:
    """Return the resident memory of these processes in bytes."""
    words = [(linux.read(f"/proc/{pid}/statm") or "").split() for pid in pids]
    return sum(int(each[1]) for each in words if len(each) > 1) * _PAGE


def _cpu_seconds(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | _CPU_CLOCK)
    except OSError:
        return 0.0


def _delay(pid: int) -> float | None:
    """Return the seconds that the threads of a process have waited for a CPU, None if the kernel does not tell."""
    found = None
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return None
    for thread in threads:
        try:
            file = os.open(f"/proc/{pid}/task/{thread}/schedstat", os.O_RDONLY)  # a file object takes twice as long
        except OSError:
            continue  # it has ended
        words = os.read(file, _SCHEDSTAT).split()
        os.close(file)
        if len(words) > 1:
            found = (found or 0.0) + int(words[1]) / 1e9
    return found


def _throttled(pid: int, root: str = _CGROUPS) -> float:
    """Return the seconds in which the cgroups of a process allowed it no CPU."""
    seconds = 0.0
    for directory in cpu_groups(linux.read(f"/proc/{pid}/cgroup") or "", root):
        for line in (linux.read(f"{directory}/cpu.stat") or "").splitlines():
            name, _, value = line.partition(" ")
            if name in ("throttled_usec", "throttled_time") and value.isdigit():
                seconds = max(seconds, int(value) / (1e6 if name == "throttled_usec" else 1e9))
    return seconds


def cpu_groups(text: str, root: str = _CGROUPS) -> list[str]:
    """Return the directories of the CPU cgroups in a /proc/PID/cgroup, from the innermost upwards."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if "cpu" in controllers.split(",") or (number == "0" and not controllers and _is_v2(root)):
            top = root if not controllers else f"{root}/cpu"
            parts = [part for part in name.split("/") if part and part != ".."]
            return ["/".join([top, *parts[:length]]) for length in range(len(parts), 0, -1)]
    return []


def _is_v2(root: str) -> bool:
    return os.path.exists(f"{root}/cgroup.controllers")
