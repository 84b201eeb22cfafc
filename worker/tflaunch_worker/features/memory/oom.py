"""Evidence of OOM kills in the kernel's counters and log; never blocks."""

from __future__ import annotations

import errno
import os
import re

from tflaunch_worker import procfs

_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # a kernel constant; the kernel's log uses the pids of this namespace
_NO_LIMIT = 1 << 60  # bytes; v1 reports almost 2**63 for "none"
_BATCH = 1024 * 1024  # bytes; the kernel charges memory to a group in larger pieces than are used
_RECORD = 8192  # bytes; a read of /dev/kmsg returns one whole record, or fails if the buffer is too small
_LOG_BYTES = 4 * 1024 * 1024
_LOG_RECORDS = 20_000
_NAMED = rb"Killed process (\d{1,10})\b|oom-kill:[^\n]*,pid=(\d{1,10})\b"


class OomWatch:
    """Counts the OOM killer's kills around this process from now on.

    The counter is that of the memory cgroup of this process and its children; it rises before the killed process is
    seen to be dead. The kernel's log, where we may read it, names the pid.
    """

    def __init__(self, root: str = "/sys/fs/cgroup", proc: str = "/proc", log: str = "/dev/kmsg") -> None:
        self._proc = proc
        self._groups = _memory_groups(root, proc)
        self._count = self._groups[0].kills() if self._groups else 0
        self._kills = 0  # kills since the beginning that do not yet explain a death
        self._why = ""
        self._named: set[int] = set()
        self._log = _open_log(log, proc)

    def evidence(self, pid: int) -> str:
        """Return a clause about the OOM kill of a child of ours, or "". Never raises.

        Ask once per process that died of SIGKILL: one kill explains one death.
        """
        try:
            return self._evidence(pid)
        except Exception:
            return ""  # a missing explanation is better than a failure

    def room(self) -> int | None:
        """Return the bytes left until a limit of a cgroup or the machine is reached.

        None if unknown. Memory that the kernel would reclaim does not count as used. Never raises.
        """
        try:
            found = [room for room in (group.room() for group in self._groups) if room is not None]
            known = procfs.memory(self._proc)
            return min([*found, *([known["available"]] if "available" in known else ())], default=None)
        except Exception:
            return None

    def _evidence(self, pid: int) -> str:
        self._look()
        self._read_log()
        is_named = pid in self._named
        self._named.discard(pid)
        # A kill that the log attributes to another process does not count.
        if not is_named and self._kills <= len(self._named):
            return ""
        self._kills = max(0, self._kills - 1)
        return f"the kernel's OOM killer ended it: {self._why or self._whole_machine()}"

    def _look(self) -> None:
        if not self._groups:
            return
        count = self._groups[0].kills()
        full = [group for group in self._groups if group.has_hit_limit()]
        full = full or [group for group in self._groups if group.is_full_with_swap()]
        if count > self._count:
            self._kills += count - self._count
            self._why = full[0].description() if full else ""
        self._count = count

    def _whole_machine(self) -> str:
        total = procfs.memory(self._proc).get("total")
        return f"the memory of this machine{f', {in_words(total)},' if total else ''} was full"

    def _read_log(self) -> None:
        """Read the new records of the kernel's log, up to a limit."""
        if self._log is None:
            return
        size = 0
        for _ in range(_LOG_RECORDS):
            try:
                record = os.read(self._log, _RECORD)
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # records were overwritten before we read them; the next read continues after the gap
                return  # EAGAIN: no more records
            self._named.update(int(first or second) for first, second in re.findall(_NAMED, record))
            size += len(record)
            if not record or size >= _LOG_BYTES:
                return


class _Group:
    """A memory cgroup: v2 counts in memory.events, v1 in files with other names.

    v1 has a second limit, of memory and swap together, which the kernel checks first. If both limits are equal, as with
    `docker run --memory 1g --memory-swap 1g`, the first is never hit, and hits of the second are not counted (observed
    with Linux 6.18): only the maximum usage shows them.
    """

    def __init__(self, name: str, directory: str) -> None:
        self._name = name
        self._directory = directory
        self._is_v2 = os.path.exists(f"{directory}/memory.events")
        self._hits = self._count_hits()

    def kills(self) -> int:
        """Return the number of killed processes of the group, with v2 also of subgroups."""
        return _count(f"{self._directory}/{'memory.events' if self._is_v2 else 'memory.oom_control'}", "oom_kill")

    def has_hit_limit(self) -> bool:
        """Return whether it has a limit that was hit since the previous call."""
        before, self._hits = self._hits, self._count_hits()
        return self._hits > before and self._limit() is not None

    def is_full_with_swap(self) -> bool:
        """Return whether its processes have used its whole limit of memory and swap."""
        limit, most = self._limit_with_swap(), self._number_in("memory.memsw.max_usage_in_bytes")
        return limit is not None and most is not None and most >= limit - _BATCH

    def room(self) -> int | None:
        """Return how many bytes are left to its limit, None without a limit."""
        limit = self._limit()
        used = self._number_in("memory.current" if self._is_v2 else "memory.usage_in_bytes")
        if limit is None or used is None:
            return None
        cached = _count(f"{self._directory}/memory.stat", "inactive_file" if self._is_v2 else "total_inactive_file")
        return max(limit - used + cached, 0)

    def description(self) -> str:
        """Return a readable description of its limit."""
        limit, with_swap = self._limit() or 0, self._limit_with_swap()
        if with_swap is not None and with_swap > limit and self.is_full_with_swap():
            return f"limit of memory and swap of {self._shown()} is {in_words(with_swap)}"
        return f"memory limit of {self._shown()} is {in_words(limit)}"

    def _shown(self) -> str:
        return "the container" if self._name == "/" else f"cgroup {self._name}"

    def _count_hits(self) -> int:
        if self._is_v2:
            return _count(f"{self._directory}/memory.events", "oom")
        return self._number_in("memory.failcnt") or 0

    def _limit(self) -> int | None:
        limit = self._number_in("memory.max" if self._is_v2 else "memory.limit_in_bytes")
        return limit if limit is not None and limit < _NO_LIMIT else None

    def _limit_with_swap(self) -> int | None:
        limit = None if self._is_v2 else self._number_in("memory.memsw.limit_in_bytes")
        return limit if limit is not None and limit < _NO_LIMIT else None

    def _number_in(self, name: str) -> int | None:
        return _number(procfs.read(f"{self._directory}/{name}") or "")


def _memory_groups(root: str, proc: str) -> list[_Group]:
    """Return the visible memory cgroups of this process, from its own upwards."""
    for line in (procfs.read(f"{proc}/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if number == "0" and not controllers:
            top, counter = root, "memory.events"
        elif "memory" in controllers.split(","):
            top, counter = f"{root}/memory", "memory.oom_control"
        else:
            continue
        found = [_Group(path or "/", top + path) for path in _upwards(name) if os.path.exists(f"{top}{path}/{counter}")]
        if found:
            return found
    return []


def _upwards(name: str) -> list[str]:
    """Split "/a/b" into "/a/b", "/a" and ""; return "" alone for names out of view."""
    parts = [part for part in name.split("/") if part]
    if ".." in parts:
        return [""]
    return ["".join(f"/{part}" for part in parts[:length]) for length in range(len(parts), -1, -1)]


def _open_log(path: str, proc: str) -> int | None:
    """Open the kernel's log at its end; None if it is unreadable or has other pids."""
    try:
        if os.readlink(f"{proc}/self/ns/pid") != _FIRST_PID_NAMESPACE:
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.lseek(descriptor, 0, os.SEEK_END)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _count(path: str, name: str) -> int:
    """Return the number after a name in a file of such lines, or 0 without the name."""
    for line in (procfs.read(path) or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name:
            return _number(words[1]) or 0
    return 0


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None


def in_words(size: float) -> str:
    """Return a number of bytes in MiB, or in GiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
