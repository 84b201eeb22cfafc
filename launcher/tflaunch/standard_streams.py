"""Standard streams that are open, and take all output, however slowly it is read."""

from __future__ import annotations

import io
import os
import select
import sys

TYPE_CHECKING = False  # for the reason in `__init__.py`
if TYPE_CHECKING:
    from typing_extensions import Buffer


def prepare_streams() -> None:
    """Open missing streams, and have stdout and stderr wait for their readers."""
    _open_missing()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        stream.flush()
        file = io.BufferedWriter(_PatientFile(name, stream.fileno()))
        text = io.TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=stream.line_buffering)
        setattr(sys, name, text)


class _PatientFile(io.FileIO):
    """A stream that other programs, which share it, may have made non-blocking.

    Python would drop what the pipe has no room for. The flag is not ours to clear: all who share the pipe share it.
    """

    def __init__(self, name: str, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._name = name

    def write(self, data: Buffer) -> int:
        """Write at least a part of the data; return how many bytes."""
        try:
            while (written := super().write(data)) is None:
                select.select([], [self], [])  # no limit: as a pipe that blocks; Ctrl-C ends it
        except OSError as error:
            error.filename = error.filename or self._name
            raise
        return written


def _open_missing() -> None:
    """Open /dev/null for closed streams, so that no file or socket takes their number."""
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", errors="replace", closefd=False))
