"""Call what only Linux has: prctl, pidfds, namespaces, locks of files, GPUs."""

from __future__ import annotations

import fcntl
import functools
import os
import resource
import signal
import socket
import struct
import time
from typing import Callable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SYS_PIDFD_SEND_SIGNAL, _SYS_PIDFD_OPEN = 424, 434  # the same numbers on every architecture
_PUNCTUAL = -10  # niceness
NVIDIA_DRIVER = "/proc/driver/nvidia/version"
"""File that exists where NVIDIA's driver is loaded."""

NVIDIA_GPUS = "/proc/driver/nvidia/gpus"
"""Directory with one for each GPU, where NVIDIA's driver is loaded."""

_OTHER_GPUS = ("/dev/kfd", "/dev/dxg")  # AMD's, and those that WSL passes through: not counted here

_CHECKS_END, _LOCK_WAIT = 10.0, 0.005  # seconds


@functools.lru_cache(maxsize=None)
def c_function(name: str) -> Callable[..., int]:
    """Return a C function; ctypes, which costs milliseconds, is imported on demand."""
    import ctypes

    found: Callable[..., int] = getattr(ctypes.CDLL(None, use_errno=True), name)
    return found


def _prctl(option: int, value: int) -> bool:
    return c_function("prctl")(option, value, 0, 0, 0) == 0


def adopt_orphans() -> bool:
    """Make this process the new parent of every descendant whose parent dies."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signal_number: int) -> bool:
    """Ask the kernel to signal this process when the thread that forked it dies."""
    return _prctl(_PR_SET_PDEATHSIG, signal_number)


def call_c(name: str, *arguments: object) -> int:
    """Return the result of a C function; raise `OSError` if it is negative."""
    result = c_function(name)(*arguments)
    if result < 0:
        import ctypes

        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def be_punctual() -> int:
    """Raise this process's priority where allowed; return its previous niceness.

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


def forbid_core_file(pid: int) -> None:
    """Prevent a process from leaving a core file when it dies."""
    try:
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    except (OSError, ValueError):
        pass  # we may not limit it


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable at the process's exit, or None."""
    if hasattr(os, "pidfd_open"):
        try:
            return os.pidfd_open(pid)
        except OSError:
            return None
    descriptor = c_function("syscall")(_SYS_PIDFD_OPEN, pid, 0)  # Python 3.8 has no name for it
    if descriptor < 0:
        return None
    os.set_inheritable(descriptor, False)
    return descriptor


def kill(pid: int, pidfd: int | None, number: int) -> bool:
    """Signal a process; return whether it existed and we were allowed to.

    ``pidfd``, unlike a pid, cannot be reused by another process; None where unsupported.
    """
    try:
        if pidfd is None:
            os.kill(pid, number)
        elif hasattr(signal, "pidfd_send_signal"):
            signal.pidfd_send_signal(pidfd, number)
        else:
            call = c_function("syscall")  # Python 3.8 has no name for it
            return call(_SYS_PIDFD_SEND_SIGNAL, pidfd, int(number), 0, 0) == 0
    except (ProcessLookupError, PermissionError):
        return False
    return True


def is_lock_free(path: str) -> bool | None:
    """Return whether a file's lock is free; None if this user has no such file.

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


def is_same_user(connection: socket.socket) -> bool:
    """Return whether the peer of a Unix socket runs as this user or as root."""
    return peer_of(connection)[1] in (os.getuid(), 0)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return pid and user of a Unix socket's peer, when it connected or listened."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", credentials)
    return pid, user


def count_gpus() -> int | None:
    """Return the number of GPUs of this host, or None if unknown."""
    try:
        return len(os.listdir(NVIDIA_GPUS))
    except OSError:
        return None if any(map(os.path.exists, (NVIDIA_DRIVER, *_OTHER_GPUS))) else 0


def connect_to(directory: str, name: str, patience: float | None = None) -> socket.socket:
    """Return a connection to a Unix socket in a directory, however deep that is.

    ``patience``: its timeout in seconds. Raises `OSError` if no process listens there.
    """
    return _at_socket(directory, name, socket.socket.connect, patience)


def bind_to(directory: str, name: str) -> socket.socket:
    """Return a Unix socket bound to a name in a directory, however deep that is.

    Raises `OSError`, which names it, if it cannot be made there.
    """
    try:
        return _at_socket(directory, name, socket.socket.bind)
    except OSError as error:
        error.filename = os.path.join(directory, name)
        raise


def _at_socket(
    directory: str, name: str, use: Callable[[socket.socket, str], object], patience: float | None = None
) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(patience)
    try:
        # The address of a socket has at most 108 bytes.
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            short = f"/proc/self/fd/{descriptor}"
            use(made, f"{short if os.path.isdir(short) else directory}/{name}")
        finally:
            os.close(descriptor)
    except OSError:
        made.close()
        raise
    return made
