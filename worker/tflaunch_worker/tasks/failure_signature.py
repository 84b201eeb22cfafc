"""Derive failure signatures, which distinguish a program's failures, from its last output.

The supervisor compares them to decide whether a restart is worthwhile; they are used for nothing else.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import hashlib
import re

OUTPUT = "output "
"""Prefix of a signature that is a digest of the last lines, used when they contain no traceback."""

LONGEST = 200
"""Maximum number of characters of a signature."""

_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(?P<file>[^"\n]{1,500})", line (?P<line>\d{1,7}), in ')
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]{0,200})(?::|$)")
_NOT_OF_THE_USER = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<")
_COMPARED_LINES = 3
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]*\d[0-9a-fA-F]*")


def of_output(tail: bytes) -> str:
    """Return the signature of a failure, such as ``ValueError at train.py:41``; "" without output.

    Args:
        tail: the last few KiB of the program's output.
    """
    lines = [line.rpartition("\r")[2] for line in tail.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")]
    raised = _traceback(lines)
    if raised:
        return raised[:LONGEST]
    last = [line.strip() for line in lines if line.strip()][-_COMPARED_LINES:]
    if not last:
        return ""
    # Times, addresses, ports and pids differ between attempts that fail for the same reason.
    text = "\n".join(_CHANGING.sub("#", line) for line in last)
    return OUTPUT + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def _traceback(lines: list[str]) -> str:
    """Return exception type and location of the last traceback, or "" if no complete one exists."""
    starts = [number for number, line in enumerate(lines) if line.rstrip() == _HEAD]
    if not starts:
        return ""
    frames = []
    for line in lines[starts[-1] + 1 :]:
        frame = _FRAME.match(line)
        if frame is not None:
            frames.append((frame["file"], frame["line"]))
        elif frames and line and not line[0].isspace():
            exception = _EXCEPTION.match(line)
            if exception is not None:
                return f"{exception['type'].rpartition('.')[2]} at {_place(frames)}"
    return ""


def _place(frames: list[tuple[str, str]]) -> str:
    """Return file and line of the innermost frame in the user's own code, or else of the innermost frame."""
    own = [frame for frame in frames if not _NOT_OF_THE_USER.search(frame[0])]
    file, line = (own or frames)[-1]
    return f"{file.rpartition('/')[2]}:{line}"
