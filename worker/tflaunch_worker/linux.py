"""What only Linux has: prctl, pidfd, /proc. Elsewhere every function has a harmless fallback.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import fcntl
import functools
import os
import resource
import signal
import socket
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SYS_PIDFD_SEND_SIGNAL, _SYS_PIDFD_OPEN = 424, 434  # the same numbers on every architecture
_PUNCTUAL = -10
NVIDIA_DRIVER = "/proc/driver/nvidia/version"
"""This is there where NVIDIA's driver is."""

_NVIDIA_GPUS = "/proc/driver/nvidia/gpus"
_OTHER_GPUS = ("/dev/kfd", "/dev/dxg")  # AMD's, and those of Windows below WSL: they are not counted here

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@functools.lru_cache(maxsize=None)
def _c_function(name: str) -> Callable[..., int] | None:
    """A function of the C library; only agents need any, and a launcher does without the milliseconds of ctypes."""
    import ctypes

    found: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    return found


def _prctl(option: int, value: int) -> bool:
    prctl = _c_function("prctl")
    return prctl is not None and prctl(option, value, 0, 0, 0) == 0


def adopt_orphans() -> bool:
    """Make this process the parent of every descendant whose own parent dies."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signal_number: int) -> bool:
    """Ask the kernel to send this process a signal when the thread that forked it dies."""
    return _prctl(_PR_SET_PDEATHSIG, signal_number)


def be_punctual() -> int:
    """Have this process scheduled before others, where that is allowed; return its niceness until now.

    The agent does next to nothing, but what it does tells which of two exits came first.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, min(before, _PUNCTUAL))
        with open("/proc/self/autogroup", "w", encoding="ascii") as group:  # else niceness counts within a session only
            group.write(str(_PUNCTUAL))
    except OSError:
        pass  # for that one must be root
    return before


def forbid_core_file(pid: int) -> None:
    """Let a process leave no core file when it dies."""
    try:
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    except (AttributeError, OSError, ValueError):
        pass  # it is not ours to limit


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that turns readable when the process exits, or None where there is none."""
    if hasattr(os, "pidfd_open"):
        try:
            return os.pidfd_open(pid)
        except OSError:
            return None
    syscall = _c_function("syscall") if sys.platform == "linux" else None
    descriptor = -1 if syscall is None else syscall(_SYS_PIDFD_OPEN, pid, 0)  # Python 3.8 has no name for it
    if descriptor < 0:
        return None
    os.set_inheritable(descriptor, False)
    return descriptor


def has_pidfd() -> bool:
    """Whether exits can be waited for on descriptors (Linux 5.3 and later)."""
    descriptor = open_pidfd(os.getpid())
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def kill(pid: int, pidfd: int | None, number: int) -> bool:
    """Signal a process; return whether it was there and ours to signal.

    Args:
        pid: its number.
        pidfd: a descriptor of it, which cannot mean another process by now; None where there are none.
        number: the signal.
    """
    try:
        if pidfd is None:
            os.kill(pid, number)
        elif hasattr(signal, "pidfd_send_signal"):
            signal.pidfd_send_signal(pidfd, number)
        else:
            syscall = _c_function("syscall")  # Python 3.8 has no name for it
            return syscall is not None and syscall(_SYS_PIDFD_SEND_SIGNAL, pidfd, int(number), 0, 0) == 0
    except (ProcessLookupError, PermissionError):
        return False
    return True


def is_lock_free(path: str) -> bool | None:
    """Whether no process holds the lock on a file; None if there is no such file of this user.

    To look takes the lock for a moment, shared with others that look.
    """
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if os.fstat(lock).st_uid != os.geteuid():
            return None
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def pids() -> list[int]:
    """Return the numbers of all processes of this machine, none where they cannot be known."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def descendants(pid: int, without: int) -> list[int]:
    """Return the processes below ``pid``, leaving out the subtree of ``without``.

    Costs one small read when there are none: the usual case.
    """
    found: list[int] = []
    queue = [child for child in _children(pid) if child != without]
    while queue:
        process = queue.pop()
        found.append(process)
        queue.extend(_children(process))
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return children
    for thread in threads:
        text = read(f"/proc/{pid}/task/{thread}/children")
        if text is None:
            return _children_by_scan(pid)
        children.extend(int(word) for word in text.split())
    return children


def _children_by_scan(pid: int) -> list[int]:
    """The slow way, for kernels built without the ``children`` file."""
    processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [process for process in processes if _stat_field(process, 1) == pid]


def session_of(pid: int) -> int | None:
    """Return the session id of a process, None when it is gone."""
    return _stat_field(pid, 3)


def parent_of(pid: int) -> int | None:
    """Return the process that started ``pid``, or adopted it; None when that cannot be known."""
    return _stat_field(pid, 1)


def is_zombie(pid: int) -> bool:
    """Whether the process has exited and only waits for its parent to look."""
    text = read(f"/proc/{pid}/stat")
    return text is not None and text.rpartition(")")[2].split()[0] == "Z"


def may_be_program(pid: int) -> bool:
    """Whether a process of this user runs a program, or did before it exited; a kernel thread never does.

    A zombie may have forked right before its end, and init may be slow to reap it.
    """
    try:
        is_ours = os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return True
    return is_ours and (_stat_field(pid, 20) != 0 or is_zombie(pid))  # the size of its memory


def _stat_field(pid: int, index: int) -> int | None:
    """Field of /proc/<pid>/stat counted from the state letter, which follows the name."""
    text = read(f"/proc/{pid}/stat")
    return None if text is None else int(text.rpartition(")")[2].split()[index])


class Process:
    """A process: its parent, its session, its own and its buried children's time, the memory it has."""

    def __init__(self, parent: int, session: int, cpu_seconds: float, rss_bytes: int) -> None:
        self.parent = parent
        self.session = session
        self.cpu_seconds = cpu_seconds
        self.rss_bytes = rss_bytes


def processes() -> dict[int, Process]:
    """Return all processes of this machine by pid, none where that cannot be known."""
    found = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    for name in names:
        text = read(f"/proc/{name}/stat") if name.isdigit() else None
        if text:
            fields = text.rpartition(")")[2].split()  # from the state letter on
            ticks = sum(map(int, fields[11:15]))
            found[int(name)] = Process(int(fields[1]), int(fields[3]), ticks / _TICKS, int(fields[21]) * _PAGE)
    return found


def memory() -> dict[str, int]:
    """Return the bytes of memory that there are, ``total``, and that a new process can have, ``available``."""
    known = dict(line.split(":", 1) for line in (read("/proc/meminfo") or "").splitlines() if ":" in line)
    names = {"total": "MemTotal", "available": "MemAvailable"}
    return {name: int(known[field].split()[0]) * 1024 for name, field in names.items() if field in known}


def shared_memory(pid: int) -> int:
    """Return how many bytes of a process's memory others have as well; slow: every page is looked at."""
    known = dict(line.split(":", 1) for line in (read(f"/proc/{pid}/smaps_rollup") or "").splitlines()[1:])
    return sum(int(known[name].split()[0]) * 1024 for name in ("Shared_Clean", "Shared_Dirty") if name in known)


def environment_of(pid: int) -> set[bytes]:
    """Return the ``NAME=value`` entries that a process was started with, empty when unreadable."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(file.read().split(b"\0"))
    except OSError:
        return set()


def first_ephemeral_port() -> int:
    """Return the lowest port that the kernel may give to an outgoing connection."""
    text = read("/proc/sys/net/ipv4/ip_local_port_range")
    return int(text.split()[0]) if text else 32768


def is_same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket belongs to this process's user, or to root."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the directory's mode already keeps others out
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return user in (os.getuid(), 0)


def read(path: str) -> str | None:
    """Return what a file of the kernel holds, None where it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:  # a text file would take three times as long
            return file.read().decode("utf-8", "replace")
    except OSError:
        return None


def count_gpus() -> int | None:
    """Return how many GPUs this host has, None where that is not known."""
    try:
        return len(os.listdir(_NVIDIA_GPUS))
    except OSError:
        return None if any(map(os.path.exists, (NVIDIA_DRIVER, *_OTHER_GPUS))) else 0
