"""What /proc shows of this process: the command line and the environment, as if it had been started with others.

Others know a task by them: `ps`, and the agent, which finds what a task has left behind by its environment.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import ctypes
import mmap
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable

ROOM = "TFLAUNCH_ROOM"
"""A variable of the zygote whose place in memory takes the marks of a task where the kernel allows no more."""

_MARKS = ("TFLAUNCH_RUN", "TFLAUNCH_TASK", "TFLAUNCH_ATTEMPT", "TFLAUNCH_TASK_DIR")
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


def show(argv: list[str], env: dict[str, str]) -> None:
    """Let /proc/PID/cmdline and /proc/PID/environ show these; where that cannot be, as much as there is room for."""
    with open("/proc/self/stat", "rb") as file:
        fields = [int(field) for field in file.read().rpartition(b")")[2].split()[1:]]
    words, variables = _block(argv), _block(f"{name}={value}" for name, value in env.items())
    if _move(fields, words, variables):
        return
    argv_start, argv_end, env_start, env_end = fields[44:48]
    _write(argv_start, argv_end - argv_start, words)
    known = ctypes.string_at(env_start, env_end - env_start)
    place = known.find(ROOM.encode("ascii") + b"=")
    if place >= 0:
        end = known.index(b"\0", place)
        _write(env_start + place, end - place, _block(f"{name}={env.get(name, '')}" for name in _MARKS))


def _block(words: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def _move(fields: list[int], words: bytes, variables: bytes) -> bool:
    """Have the kernel look for both elsewhere; return whether it does. Not every kernel can (CHECKPOINT_RESTORE)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
    size = len(words) + len(variables)
    kind = (mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    place = libc.mmap(None, ctypes.c_size_t(size), *kind, -1, ctypes.c_long(0))
    if place in (None, _MAP_FAILED):
        return False
    ctypes.memmove(place, words + variables, size)
    # Numbers of /proc/PID/stat, counted from the field behind the state.
    start_code, end_code, start_stack = fields[22:25]
    start_data, end_data, start_brk = fields[41:44]
    middle, end = place + len(words), place + size
    layout = (start_code, end_code, start_data, end_data, start_brk, libc.sbrk(ctypes.c_long(0)), start_stack)
    wanted = _Map(*layout, place, middle, middle, end, None, 0, 0xFFFFFFFF)
    call = (ctypes.c_ulong(_PR_SET_MM_MAP), ctypes.byref(wanted), ctypes.c_ulong(ctypes.sizeof(wanted)))
    return bool(libc.prctl(_PR_SET_MM, *call, ctypes.c_ulong(0)) == 0)


def _write(address: int, room: int, data: bytes) -> None:
    """Write into our own memory, no further than there is room, and zeroes after it."""
    ctypes.memmove(address, data[:room].ljust(room, b"\0"), room)
