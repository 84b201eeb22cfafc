"""A name for a directory that fits into a socket address (108 bytes), however deep the directory is.

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
    """Give a short name of ``directory`` that holds inside the ``with``.

    Raises:
        OSError: there is no such directory.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        short = f"/proc/self/fd/{descriptor}"
        yield short if os.path.isdir(short) else directory
    finally:
        os.close(descriptor)
