"""Access Linux-only features (prctl, pidfd, /proc); elsewhere every function has a harmless fallback.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import resource
import signal
import socket
import struct
import sys
import time
from contextlib import contextmanager
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_CAPABILITIES = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_SYS_PIDFD_SEND_SIGNAL, _SYS_PIDFD_OPEN = 424, 434  # the same numbers on every architecture
_PUNCTUAL, _YIELDING = -10, 10  # niceness; with 19, a background process starves on a busy host
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "ppc64le": 273, "riscv64": 30}
_IOPRIO_WHO_PROCESS, _IOPRIO_CLASS_IDLE = 1, 3
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
"""Kinds of namespaces: CLONE_NEWUSER, CLONE_NEWNET."""
_PF_EXITING = 0x4  # of linux/sched.h
_MOST_WALKS = 20  # of a tree of processes that changes all the time
NVIDIA_DRIVER = "/proc/driver/nvidia/version"
"""File that exists where NVIDIA's driver is loaded."""

_NVIDIA_GPUS = "/proc/driver/nvidia/gpus"
_OTHER_GPUS = ("/dev/kfd", "/dev/dxg")  # AMD's, and those that WSL passes through: not counted here

_CHECKS_END, _LOCK_WAIT = 10.0, 0.005  # seconds

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@functools.lru_cache(maxsize=None)
def _c_function(name: str) -> Callable[..., int] | None:
    """Return a function of the C library; ctypes, which costs milliseconds, is imported on demand."""
    import ctypes

    found: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    return found


def _prctl(option: int, value: int) -> bool:
    prctl = _c_function("prctl")
    return prctl is not None and prctl(option, value, 0, 0, 0) == 0


def adopt_orphans() -> bool:
    """Make this process the new parent of every descendant whose parent dies."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signal_number: int) -> bool:
    """Ask the kernel to signal this process when the thread that forked it dies."""
    return _prctl(_PR_SET_PDEATHSIG, signal_number)


def enter_new_namespaces(kinds: int) -> None:
    """Move this process to new namespaces of these kinds (`NEW_USER`, `NEW_NETWORK`).

    Raises:
        OSError: this user may not do that, or the system has none.
    """
    _call("unshare", kinds)


def enter_namespace(descriptor: int) -> None:
    """Move this process, which must have one thread, to a namespace.

    Raises:
        OSError: this user may not do that.
    """
    _call("setns", descriptor, 0)


def drop_capabilities() -> None:
    """Drop all capabilities, so that processes of this user without capabilities may open this one's /proc files.

    Raises:
        OSError: the system has none.
    """
    import ctypes

    header, none = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    _call("capset", header, none)
    _prctl(_PR_SET_DUMPABLE, 1)  # a process that has entered a user namespace is not


def _call(name: str, *arguments: object) -> None:
    """Call a function of the C library.

    Raises:
        OSError: it fails, or does not exist.
    """
    function = _c_function(name)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if function(*arguments) != 0:
        import ctypes

        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def be_punctual() -> int:
    """Raise this process's scheduling priority where that is allowed; return its previous niceness.

    The agent uses next to no CPU time, but its observations determine which of two processes exited first.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, min(before, _PUNCTUAL))
        with open("/proc/self/autogroup", "w", encoding="ascii") as group:  # else niceness counts within a session only
            group.write(str(_PUNCTUAL))
    except OSError:
        pass  # only root may do this
    return before


def take_session(niceness: int) -> None:
    """Give this process, a fork, a session of its own, and a niceness that also counts against other sessions."""
    try:
        if os.getsid(0) != os.getpid():
            os.setsid()  # in a new group of the scheduler, of niceness 0
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
        if niceness:
            with open("/proc/self/autogroup", "w", encoding="ascii") as group:
                group.write(str(niceness))
    except OSError:
        pass  # the kernel has no such groups


def yield_to_others() -> None:
    """Give this process, a fork, a low priority for CPUs and the lowest for disks."""
    take_session(_YIELDING)
    number, call = _IOPRIO_SET.get(os.uname().machine), _c_function("syscall")
    if number is not None and call is not None:
        call(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_CLASS_IDLE << 13)


def forbid_core_file(pid: int) -> None:
    """Prevent a process from leaving a core file when it dies."""
    try:
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    except (AttributeError, OSError, ValueError):
        pass  # we may not limit it


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process exits, or None where the system has none."""
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
    """Return whether the system has pidfds (Linux 5.3 and later)."""
    descriptor = open_pidfd(os.getpid())
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def kill(pid: int, pidfd: int | None, number: int) -> bool:
    """Signal a process; return whether it existed and we were allowed to.

    Args:
        pid: the process.
        pidfd: its descriptor, which unlike a pid cannot be reused by another process; None where unsupported.
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
    """Return whether no process holds the lock on a file; None if this user has no such file.

    The check holds the lock for a moment, shared with other checks.
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


def take_lock(descriptor: int, patience: float = 0.1) -> bool:
    """Lock an open file for this process alone; return whether that was possible.

    A process that only checks a lock (`is_lock_free`) shares it for a moment, which may be long on a busy machine. One
    that holds it alone gets ``patience`` seconds to die.
    """
    began = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            limit = _CHECKS_END if _is_only_checked(descriptor) else patience
            if time.monotonic() - began > limit:
                return False
            time.sleep(_LOCK_WAIT)
        else:
            return True


def _is_only_checked(descriptor: int) -> bool:
    """Return whether no process holds a lock alone."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


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


def descendants(pid: int, without: int) -> list[int]:
    """Return the processes below ``pid``, except the subtree of ``without``.

    The kernel's list of children can hide one while another is reaped, and a process moves when its parent exits. So
    the tree is read until nothing has changed. In the usual case there are none, which costs two small reads.
    """
    found = _read_descendants(pid, without)
    for _ in range(_MOST_WALKS):
        before, found = found, _read_descendants(pid, without)
        if found == before:
            break
    return found


def _read_descendants(pid: int, without: int) -> list[int]:
    found: list[int] = []
    queue = [child for child in _children(pid) if child != without]
    while queue:
        process = queue.pop()
        found.append(process)
        queue.extend(_children(process))
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    for thread in threads_of(pid):
        text = read(f"/proc/{pid}/task/{thread}/children")
        if text is None:
            return _children_by_scan(pid)
        children.extend(int(word) for word in text.split())
    return children


def _children_by_scan(pid: int) -> list[int]:
    """Return a process's children by scanning /proc, for kernels built without the ``children`` file."""
    return [process for process in pids() if _stat_field(process, 1) == pid]


def is_exiting(pid: int) -> bool:
    """Return whether a process is gone, or has begun to exit and adopts no others any more."""
    flags = _stat_field(pid, 6)
    return flags is None or bool(flags & _PF_EXITING)


def session_of(pid: int) -> int | None:
    """Return the session id of a process, or None if it is gone."""
    return _stat_field(pid, 3)


def parent_of(pid: int) -> int | None:
    """Return the parent of ``pid``, which started or adopted it; None if unknown."""
    return _stat_field(pid, 1)


def age_of(pid: int) -> float | None:
    """Return how many seconds ago a process was forked, or None if it is gone."""
    ticks = _stat_field(pid, 19)
    return None if ticks is None else time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / _TICKS


def is_zombie(pid: int) -> bool:
    """Return whether the process has exited and waits to be reaped."""
    text = read(f"/proc/{pid}/stat")
    return text is not None and text.rpartition(")")[2].split()[0] == "Z"


def describe_wait(pid: int) -> str:
    """Return a process's state and the kernel function in which it waits: ``state D in rpc_wait``; "" if it is gone."""
    text, place = read(f"/proc/{pid}/stat"), read(f"/proc/{pid}/wchan") or ""
    if text is None:
        return ""
    state = text.rpartition(")")[2].split()[0]
    return f"state {state} in {place}" if place.strip("0") else f"state {state}"


def may_be_program(pid: int) -> bool:
    """Return whether a process of this user runs a program or, now a zombie, did; kernel threads never do.

    A zombie may have forked just before it exited, and init may be slow to reap it.
    """
    try:
        is_ours = os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return True
    return is_ours and (_stat_field(pid, 20) != 0 or is_zombie(pid))  # field 20: the size of its memory


def is_between_programs(pid: int) -> bool:
    """Return whether a process of this user is just executing another program: it shows no environment until it runs.

    For a program that was started without an environment, the kernel knows where that would be.
    """
    has_memory = may_be_program(pid) and bool(_stat_field(pid, 20))  # as above; a zombie has none
    return has_memory and _stat_field(pid, 48) == 0  # field 48: the end of its environment


def _stat_field(pid: int, index: int) -> int | None:
    """Return a field of /proc/<pid>/stat, counted from the state letter, which follows the name."""
    text = read(f"/proc/{pid}/stat")
    return None if text is None else int(text.rpartition(")")[2].split()[index])


class Process(NamedTuple):
    """A process: its parent, its session, its memory, and the CPU time of itself and its reaped children."""

    parent: int
    session: int
    cpu_seconds: float
    rss_bytes: int


def processes() -> dict[int, Process]:
    """Return all processes of this machine by pid, or none if they cannot be read."""
    found = {}
    for pid in pids():
        text = read(f"/proc/{pid}/stat")
        if text:
            fields = text.rpartition(")")[2].split()  # starting with the state letter
            ticks = sum(map(int, fields[11:15]))
            found[pid] = Process(int(fields[1]), int(fields[3]), ticks / _TICKS, int(fields[21]) * _PAGE)
    return found


def memory() -> dict[str, int]:
    """Return the machine's memory in bytes: ``total``, and ``available`` to new processes."""
    known = dict(line.split(":", 1) for line in (read("/proc/meminfo") or "").splitlines() if ":" in line)
    names = {"total": "MemTotal", "available": "MemAvailable"}
    return {name: int(known[field].split()[0]) * 1024 for name, field in names.items() if field in known}


def shared_memory(pid: int) -> int:
    """Return how many bytes of a process's memory are shared; slow, since every page is visited."""
    return _memory_sum(pid, "Shared_Clean", "Shared_Dirty")


def proportional_memory(pid: int) -> int:
    """Return a process's memory in bytes, with its part of each shared page; slow, since every page is visited."""
    return _memory_sum(pid, "Pss")


def _memory_sum(pid: int, *names: str) -> int:
    known = dict(line.split(":", 1) for line in (read(f"/proc/{pid}/smaps_rollup") or "").splitlines()[1:])
    return sum(int(known[name].split()[0]) * 1024 for name in names if name in known)


def environment_of(pid: int) -> set[bytes]:
    """Return the ``NAME=value`` entries that a process was started with; empty if unreadable, or not there yet."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(filter(None, file.read().split(b"\0")))
    except OSError:
        return set()


def first_ephemeral_port() -> int:
    """Return the lowest port that the kernel may give to an outgoing connection."""
    text = read("/proc/sys/net/ipv4/ip_local_port_range")
    return int(text.split()[0]) if text else 32768


def is_same_user(connection: socket.socket) -> bool:
    """Return whether the process at the other end of a Unix socket belongs to this user or to root."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the directory's mode already keeps others out
    return peer_of(connection)[1] in (os.getuid(), 0)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return pid and user of the process that was at the other end of a Unix socket when it connected or listened."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", credentials)
    return pid, user


def read(path: str) -> str | None:
    """Return the content of a kernel file, or None if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:  # text mode would take three times as long
            return file.read().decode("utf-8", "replace")
    except OSError:
        return None


def count_gpus() -> int | None:
    """Return the number of GPUs of this host, or None if unknown."""
    try:
        return len(os.listdir(_NVIDIA_GPUS))
    except OSError:
        return None if any(map(os.path.exists, (NVIDIA_DRIVER, *_OTHER_GPUS))) else 0


@contextmanager
def short_path(directory: str) -> Iterator[str]:
    """Yield a short path of ``directory``, valid inside the ``with`` block.

    Raises:
        OSError: the directory does not exist.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        short = f"/proc/self/fd/{descriptor}"
        yield short if os.path.isdir(short) else directory
    finally:
        os.close(descriptor)
