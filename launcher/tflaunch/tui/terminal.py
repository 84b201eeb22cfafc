"""Keep lines at the bottom of a terminal while other output scrolls above them.

No mode has to be reset afterwards: the cursor is hidden only while a frame is written, so a process that is
killed or suspended leaves a working terminal.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from tflaunch.tui import formatting

_BEGIN, _END = b"\033[?2026h\033[?25l", b"\033[?25h\033[?2026l"
"""Around a frame: show it atomically on terminals that support synchronized updates, and hide the cursor."""
_ERASE_BELOW = b"\r\033[J"
_PLAIN = b"\033[0m"
_FALLBACK = (80, 24)


def is_drawable(descriptor: int) -> bool:
    """Whether this is a terminal on which lines can be redrawn; independent of NO_COLOR."""
    return os.environ.get("TERM", "dumb") not in ("", "dumb") and os.isatty(descriptor)


def size(descriptor: int) -> tuple[int, int]:
    """Return columns and rows of a terminal, (80, 24) if unknown."""
    try:
        found = os.get_terminal_size(descriptor)
    except OSError:
        return _FALLBACK
    return (found.columns or _FALLBACK[0], found.lines or _FALLBACK[1])


def is_ours(descriptor: int) -> bool:
    """Whether this process may draw on a terminal: not while it is in the background."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return True  # not our controlling terminal, so it has no background processes


class Region:
    """Tracks what is drawn at the bottom of a terminal, and returns the bytes that change it."""

    def __init__(self) -> None:
        """Start with nothing drawn."""
        self._drawn: tuple[int, ...] = ()

    @property
    def is_drawn(self) -> bool:
        """Whether the terminal shows lines of the region."""
        return bool(self._drawn)

    def frame(self, above: bytes, lines: Sequence[str], columns: int) -> bytes:
        """Return the bytes that print ``above`` over the region and redraw the region below it.

        Args:
            above: whole lines.
            lines: the region's lines, none wider than the terminal; if empty, the region is removed.
            columns: the terminal's current width.
        """
        if not self._drawn and not lines:
            return above
        drawn = "\r\n".join(lines).encode("utf-8", "replace")
        frame = _BEGIN + self._erased(columns) + above + (_PLAIN + drawn if lines else b"") + _END
        self._drawn = tuple(formatting.width(line) for line in lines)
        return frame

    def left(self) -> bytes:
        """Return the bytes that leave the region in place; later output comes below it."""
        was_drawn, self._drawn = self.is_drawn, ()
        return b"\r\n" if was_drawn else b""

    def _erased(self, columns: int) -> bytes:
        """Return the bytes that erase the region; a terminal that became narrower has wrapped its lines."""
        if not self._drawn:
            return b""
        rows = sum(max(-(-width // max(columns, 1)), 1) for width in self._drawn)
        return (b"\033[%dA" % (rows - 1) if rows > 1 else b"") + _ERASE_BELOW
