"""Read files where tasks have written them."""

from __future__ import annotations

import os
from typing import Callable

from tflaunch_worker.agent.left_files import PART

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_DIRECTORY = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY


def read_part(opened: Callable[[], int], offset: int) -> bytes:
    """Return a part of the file that ``opened`` opens; empty if it is unreadable."""
    try:
        descriptor = opened()
    except OSError:
        return b""
    try:
        return os.pread(descriptor, PART, offset)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def open_inside(directory: str, path: str) -> int:
    """Open a file below a directory without following links; return its descriptor.

    Raises:
        OSError: it cannot be opened.
    """
    *parents, name = path.split("/")
    inside = os.open(directory, _DIRECTORY & ~os.O_NOFOLLOW)
    for parent in parents:
        try:
            child = os.open(parent, _DIRECTORY, dir_fd=inside)
        finally:
            os.close(inside)
        inside = child
    try:
        return os.open(name, _FLAGS, dir_fd=inside)
    finally:
        os.close(inside)
