"""Fork a process as a child of this process' parent.

The task is then a direct child of the agent. ``clone`` is called with CLONE_PARENT and the flags of ``fork`` (glibc's
sysdeps/unix/sysv/linux/arch-fork.h). No library offers this, so the system call is made by its number, with the
preparation and cleanup of CPython's ``os.fork`` and the parts of glibc's that matter with one thread.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal

_CLONE_PARENT = 0x00008000
_CLONE_CHILD_CLEARTID = 0x00200000
_CLONE_CHILD_SETTID = 0x01000000
_PR_GET_TID_ADDRESS = 40
_CLONE = {"x86_64": 56, "aarch64": 220}  # system calls; the fourth and fifth arguments are swapped on aarch64
_SET_ROBUST_LIST, _GET_ROBUST_LIST = {"x86_64": 273, "aarch64": 99}, {"x86_64": 274, "aarch64": 100}
_OLDEST_GLIBC = (2, 25)  # an earlier one caches the pid


def is_fork_supported() -> bool:
    """Return whether `fork_as_sibling` works on this system."""
    name, version = platform.libc_ver()
    is_old = name != "glibc" or tuple(map(int, version.split("."))) < _OLDEST_GLIBC
    return platform.machine() in _CLONE and not is_old and _tid_address() is not None


def fork_as_sibling() -> int:
    """Fork like ``os.fork``, but as a child of this process' parent.

    Raises:
        OSError: the system refuses another process.
    """
    machine = platform.machine()
    flags = _CLONE_PARENT | _CLONE_CHILD_CLEARTID | _CLONE_CHILD_SETTID | signal.SIGCHLD
    nothing, address = ctypes.c_void_p(0), ctypes.c_void_p(_tid_address())
    last = (nothing, address) if machine == "aarch64" else (address, nothing)
    libc = ctypes.PyDLL(None, use_errno=True)  # PyDLL keeps the interpreter's lock during the call
    libc.syscall.restype = ctypes.c_long
    robust, size = ctypes.c_void_p(), ctypes.c_size_t()
    number = ctypes.c_long(_GET_ROBUST_LIST[machine])
    has_robust = libc.syscall(number, ctypes.c_int(0), ctypes.byref(robust), ctypes.byref(size)) == 0
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(libc.syscall(ctypes.c_long(_CLONE[machine]), ctypes.c_ulong(flags), nothing, nothing, *last))
    if pid == 0:
        if has_robust:  # the kernel does not pass it on to the new process
            libc.syscall(ctypes.c_long(_SET_ROBUST_LIST[machine]), robust, size)
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    error = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error, os.strerror(error))
    return pid


def _tid_address() -> int | None:
    """Return the address of the C library's main thread id, set by the kernel."""
    address = ctypes.c_void_p()
    libc = ctypes.CDLL(None)
    if libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) != 0:
        return None
    return address.value
