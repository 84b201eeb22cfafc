"""Redraw a status repeatedly, in a terminal other than the run's."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from tflaunch.explain.run_status import Status
from tflaunch.tui import layout as view
from tflaunch.tui import terminal

_STDOUT = 1


def watch(statuses: Iterable[Status]) -> None:
    """Show each status in place of the previous one, and leave the last one on the screen.

    If the output cannot be redrawn, each status is printed as a table, separated by empty lines.

    Args:
        statuses: successive statuses of a run; each is taken when it is due.
    """
    if terminal.is_drawable(_STDOUT):
        _draw(statuses)
    else:
        _print(statuses)


def _draw(statuses: Iterable[Status]) -> None:
    region = terminal.Region()
    terminal.clear_before_stop(lambda: _write(region.frame(b"", [])))
    terminal.keep_unread(_STDOUT, is_kept=True)
    try:
        for status in statuses:
            columns, rows = terminal.size(_STDOUT)
            lines = view.render(status, max(columns - 1, 1), max(rows - 1, 1), time.time())
            _write(region.frame(b"", lines))
    finally:
        _write(region.left())
        terminal.keep_unread(_STDOUT, is_kept=False)


def _print(statuses: Iterable[Status]) -> None:
    separator = ""
    for status in statuses:
        _write((separator + view.table(status)).encode("utf-8", "replace"))
        separator = "\n"


def _write(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
