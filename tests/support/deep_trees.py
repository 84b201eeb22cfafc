"""Directories nested deeper than Python recurses."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
