"""Small disks and deep directories, and a check of what logs report about output that did not fit."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from support.needs import need
from support.waiting import wait_until

SIZE = "2m"
MakeDisk = Callable[..., Path]
"""Mounts a small disk at a path, which it creates and returns; ``files`` limits the number of files.

``more``: other options of the mount.
"""


@contextmanager
def small_disks() -> Iterator[MakeDisk]:
    """Yield a function that mounts small disks, and unmount them at the end."""
    need("mounts")
    mounted: list[Path] = []

    def mount(path: Path, files: int = 0, more: str = "rw") -> Path:
        path.mkdir(parents=True, mode=0o700)
        options = f"size={SIZE},mode=700,nr_inodes={files},{more}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True)
        mounted.append(path)
        return path

    try:
        yield mount
    finally:
        for path in mounted:  # the guard of a host ends a moment after its run
            wait_until(partial(_unmount, path))


def _unmount(path: Path) -> bool:
    return subprocess.run(["umount", path], stderr=subprocess.DEVNULL, check=False).returncode == 0


def missing(log: str, words: str) -> int:
    """Return how many bytes of a task's output its log lacks; the log must report each gap but one at its end."""
    *pieces, last = re.split(r"---- tflaunch: (\d+) bytes of output are missing here: .* ----\n", log)
    ends = {0}
    for piece, gap in zip(pieces[::2], pieces[1::2], strict=True):
        texts = {piece, piece.removesuffix("\n")}  # the newline before a line of ours may be ours, too
        ends = {end + len(text) + int(gap) for text in texts for end in ends if words.startswith(text, end)}
    end = max(end + len(last) for end in ends if words.startswith(last, end))
    assert end <= len(words)
    return sum(map(int, pieces[1::2])) + len(words) - end


DEPTH = sys.getrecursionlimit() + 200
"""With names of some letters, the path is also longer than one may be."""


def make_deep(top: Path, name: str = "directory") -> None:
    """Make nested directories with a file in the deepest."""
    top.mkdir(exist_ok=True)
    here = os.open(top, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir(name, dir_fd=here)
        above, here = here, os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(above)
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)
