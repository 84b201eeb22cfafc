"""The type of a log line, and of a position in a log."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """A line of a task's log."""

    time: float
    """When the end of the line was read on the task's host, in seconds since the epoch; 0.0 if unknown."""
    task: str
    attempt: int
    text: bytes
    """The line without its newline, and without text that a progress bar overwrote."""


class Kept(NamedTuple):
    """The location of output: the log's path, and the first byte's position."""

    path: str
    start: int


def last_state(line: bytes) -> bytes:
    """Return a line as a terminal shows it after a progress bar."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]
