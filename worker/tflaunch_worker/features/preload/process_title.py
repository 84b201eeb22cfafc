"""Replace the command line and environment that /proc shows for this process.

`ps` shows the command line; the agent uses the environment to find processes that a task has left behind.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import ctypes
import mmap
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Mapping

_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_MAP_FAILED = ctypes.c_void_p(-1).value


class _Map(ctypes.Structure):
    """The kernel's struct prctl_mm_map."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data", "start_brk", "brk")),
        *((name, ctypes.c_uint64) for name in ("start_stack", "arg_start", "arg_end", "env_start", "env_end")),
        ("auxv", ctypes.c_void_p),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


def set_process_title(argv: list[str], env: Mapping[str, str]) -> None:
    """Make /proc/PID/cmdline and /proc/PID/environ of this process show these values.

    Raises:
        OSError: the kernel was built without CHECKPOINT_RESTORE, or memory is exhausted.
    """
    words, variables = _block(argv), _block(f"{name}={value}" for name, value in env.items())
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
    size = len(words) + len(variables)
    kind = (mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = libc.mmap(None, ctypes.c_size_t(size), *kind, -1, ctypes.c_long(0))
    if start in (None, _MAP_FAILED):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    ctypes.memmove(start, words + variables, size)
    with open("/proc/self/stat", "rb") as file:
        fields = [int(field) for field in file.read().rpartition(b")")[2].split()[1:]]
    start_code, end_code, start_stack = fields[22:25]  # counted from the field after the state
    start_data, end_data, start_brk = fields[41:44]
    middle, end = start + len(words), start + size
    layout = (start_code, end_code, start_data, end_data, start_brk, libc.sbrk(ctypes.c_long(0)), start_stack)
    wanted = _Map(*layout, start, middle, middle, end, None, 0, 0xFFFFFFFF)
    call = (ctypes.c_ulong(_PR_SET_MM_MAP), ctypes.byref(wanted), ctypes.c_ulong(ctypes.sizeof(wanted)))
    if libc.prctl(_PR_SET_MM, *call, ctypes.c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _block(words: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(word) + b"\0" for word in words)
