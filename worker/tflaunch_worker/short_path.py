"""Shorten a directory's path so that it fits into a socket address (108 bytes).

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import os
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator


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
