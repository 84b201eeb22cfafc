"""Read what Linux tells of processes, the machine and its cores, most in /proc."""

from __future__ import annotations

import functools
import os
import time
from collections import defaultdict
from typing import Collection, NamedTuple

_STATE, _PARENT, _GROUP, _SESSION, _FLAGS, _SINCE, _SIZE, _PAGES, _ENVIRONMENT_END = 0, 1, 2, 3, 6, 19, 20, 21, 48
"""Fields of /proc/PID/stat (proc(5)), counted from the state letter."""

_TIMES = slice(11, 15)  # of CPU, in user and kernel mode, of the process and of children that it has waited for
_PF_EXITING, _PF_FORKNOEXEC = 0x4, 0x40  # of linux/sched.h
_MOST_WALKS = 20  # of a tree of processes that changes all the time
_TICKS = os.sysconf("SC_CLK_TCK")
_QUOTA = "/sys/fs/cgroup/cpu.max"
_OLD_QUOTA = "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"
_OLD_PERIOD = "/sys/fs/cgroup/cpu/cpu.cfs_period_us"
_PAGE = os.sysconf("SC_PAGE_SIZE")


def pids() -> list[int]:
    """Return all pids of this machine, or none if they cannot be read."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def threads_of(pid: int) -> list[str]:
    """Return the numbers of a process's threads, or none if it is gone."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def descendants(*roots: int, without: Collection[int] = ()) -> list[int]:
    """Return processes below ``roots``, parents first; skip subtrees of ``without``.

    The kernel's list of children can hide one while another is reaped, and a process moves when its parent exits. So
    the tree is read until nothing has changed. In the usual case there are none, which costs two small reads.
    """
    found = _read_descendants(roots, without)
    for _ in range(_MOST_WALKS):
        before, found = found, _read_descendants(roots, without)
        if found == before:
            break
    return found


def _read_descendants(roots: Collection[int], without: Collection[int]) -> list[int]:
    children_of = _children if _has_lists_of_children() else _scan_children().__getitem__
    found: list[int] = []
    seen, queue = {*roots, *without}, list(roots)
    while queue:
        children = [child for child in children_of(queue.pop()) if child not in seen]
        seen.update(children)
        found.extend(children)
        queue.extend(children)
    return found


@functools.lru_cache(maxsize=None)
def _has_lists_of_children() -> bool:
    """Return whether the kernel lists children; then a missing list is a dead process."""
    return os.path.exists("/proc/thread-self/children")


def _children(pid: int) -> list[int]:
    lists = (read(f"/proc/{pid}/task/{thread}/children") or "" for thread in threads_of(pid))
    return [int(word) for text in lists for word in text.split()]


def _scan_children() -> defaultdict[int, list[int]]:
    """Return the children of every process, by one look at all processes."""
    children = defaultdict(list)
    for pid in pids():
        children[parent_of(pid) or 0].append(pid)
    return children


def is_exiting(pid: int) -> bool:
    """Return whether a process is gone, or exits and adopts no others any more."""
    fields = _stat(pid)
    return not fields or bool(int(fields[_FLAGS]) & _PF_EXITING)


class Place(NamedTuple):
    """Parent, group and session of a process; ``since``, its start, is unique per pid."""

    parent: int
    group: int
    session: int
    since: int


def place_of(pid: int) -> Place | None:
    """Return where a process belongs, or None if it is gone or a zombie."""
    fields = _stat(pid)
    if not fields or fields[_STATE] in "ZX":
        return None
    return Place(*(int(fields[index]) for index in (_PARENT, _GROUP, _SESSION, _SINCE)))


def clock() -> int:
    """Return the present in the unit of `Place.since`."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


def command_of(pid: int) -> str:
    """Return the command line of a process; "" if it is gone."""
    return (read(f"/proc/{pid}/cmdline") or "").rstrip("\0").replace("\0", " ")


def is_fork(pid: int) -> bool:
    """Return whether a process has executed no program since it was forked."""
    fields = _stat(pid)
    return bool(fields) and bool(int(fields[_FLAGS]) & _PF_FORKNOEXEC)


def parent_of(pid: int) -> int | None:
    """Return the parent of ``pid``, which started or adopted it; None if unknown."""
    fields = _stat(pid)
    return int(fields[_PARENT]) if fields else None


def is_below(pid: int, ancestor: int) -> bool:
    """Return whether a process descends from another, as Slurm's kill_tree.c sees it.

    It reads /proc/PID/stat word by word, so it does not see a process with a space in its name, nor what is below it.
    """
    while pid > 1 and pid != ancestor:
        if " " in (read(f"/proc/{pid}/comm") or " "):
            return False
        pid = parent_of(pid) or 0
    return pid == ancestor


def age_of(pid: int) -> float | None:
    """Return how many seconds ago a process was forked, or None if it is gone."""
    fields = _stat(pid)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_SINCE]) / _TICKS if fields else None


def is_zombie(pid: int) -> bool:
    """Return whether the process has exited and waits to be reaped."""
    return _stat(pid)[:1] == ["Z"]


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger has stopped the process."""
    return _stat(pid)[:1] in (["T"], ["t"])


def describe_wait(pid: int) -> str:
    """Return a process's state and kernel wait: ``state D in rpc_wait``; "" if gone."""
    fields, place = _stat(pid), read(f"/proc/{pid}/wchan") or ""
    if not fields:
        return ""
    return f"state {fields[_STATE]} in {place}" if place.strip("0") else f"state {fields[_STATE]}"


def may_be_program(pid: int) -> bool:
    """Return whether this user's process runs, or as a zombie ran, a program.

    Kernel threads never do. A zombie may have forked just before it exited, and init may be slow to reap it.
    """
    try:
        is_ours = os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return True
    fields = _stat(pid)
    return is_ours and (not fields or int(fields[_SIZE]) != 0 or fields[_STATE] == "Z")


def is_between_programs(pid: int) -> bool:
    """Return whether a process of this user is just executing another program.

    It shows no environment until that runs. For a program that was started without an environment, the kernel knows
    where that would be.
    """
    fields = _stat(pid) if may_be_program(pid) else []
    return bool(fields) and int(fields[_SIZE]) != 0 and int(fields[_ENVIRONMENT_END]) == 0  # a zombie has no memory


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name (any text); [] if it is gone."""
    return (read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()


class Process(NamedTuple):
    """A process: parent, session, memory, and CPU time with that of reaped children."""

    parent: int
    session: int
    cpu_seconds: float
    rss_bytes: int


def processes() -> dict[int, Process]:
    """Return all processes of this machine by pid, or none if they cannot be read."""
    found = {}
    for pid in pids():
        fields = _stat(pid)
        if fields:
            seconds = sum(map(int, fields[_TIMES])) / _TICKS
            found[pid] = Process(int(fields[_PARENT]), int(fields[_SESSION]), seconds, int(fields[_PAGES]) * _PAGE)
    return found


def memory(proc: str = "/proc") -> dict[str, int]:
    """Return the machine's memory in bytes: ``total``, and ``available`` for new use."""
    known = dict(line.split(":", 1) for line in (read(f"{proc}/meminfo") or "").splitlines() if ":" in line)
    names = {"total": "MemTotal", "available": "MemAvailable"}
    return {name: int(known[field].split()[0]) * 1024 for name, field in names.items() if field in known}


def usable_cores() -> int:
    """Return the number of cores for this process, by affinity and container quota."""
    cores = len(os.sched_getaffinity(0))
    quota = _cgroup_quota()
    return max(1, min(cores, int(quota))) if quota else cores


def _cgroup_quota() -> float | None:
    """Return the number of cores that the cgroup grants, or None for no limit."""
    words = (read(_QUOTA) or "").split() or [read(path) or "" for path in (_OLD_QUOTA, _OLD_PERIOD)]
    try:
        quota, period = map(int, words)
    except ValueError:
        return None  # "max", or there is no such group
    return quota / period if quota > 0 and period > 0 else None


def shared_memory(pid: int) -> int:
    """Return a process's shared memory in bytes; slow, since it visits every page."""
    return _memory_sum(pid, "Shared_Clean", "Shared_Dirty")


def proportional_memory(pid: int) -> int:
    """Return a process's memory in bytes, with its part of shared pages; slow."""
    return _memory_sum(pid, "Pss")


def _memory_sum(pid: int, *names: str) -> int:
    known = dict(line.split(":", 1) for line in (read(f"/proc/{pid}/smaps_rollup") or "").splitlines()[1:])
    return sum(int(known[name].split()[0]) * 1024 for name in names if name in known)


def environment_of(pid: int) -> set[bytes]:
    """Return the initial ``NAME=value`` entries of a process; empty until readable."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(filter(None, file.read().split(b"\0")))
    except OSError:
        return set()


def first_ephemeral_port() -> int:
    """Return the lowest port that the kernel may give to an outgoing connection."""
    text = read("/proc/sys/net/ipv4/ip_local_port_range")
    return int(text.split()[0]) if text else 32768


def read(path: str) -> str | None:
    """Return the content of a kernel file, or None if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:  # text mode would take three times as long
            return file.read().decode("utf-8", "replace")
    except OSError:
        return None
