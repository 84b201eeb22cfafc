"""Lines of logs."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """A line of a task's log."""

    time: float
    """When its end was read on the task's host, in seconds since the epoch; 0.0 where nobody knows."""
    task: str
    attempt: int
    text: bytes
    """Without the newline, and without what a progress bar has overwritten."""


class Kept(NamedTuple):
    """Where some output is in a task's log: the log's path, and the position of the first byte."""

    path: str
    start: int


def last_state(line: bytes) -> bytes:
    """Return what a terminal would show of a line in which a progress bar overwrote itself."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]
