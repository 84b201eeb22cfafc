"""Lines that stay at the bottom of a terminal while other output scrolls above them.

Nothing is switched on that somebody had to switch off again: the cursor is hidden only while a frame is
written, so a process that is killed or suspended leaves a terminal that works.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from tflaunch.tui import formatting

_BEGIN, _END = b"\033[?2026h\033[?25l", b"\033[?25h\033[?2026l"
"""Around a frame: terminals that know the first mode show all of it at once; and no cursor that runs about."""
_ERASE_BELOW = b"\r\033[J"
_PLAIN = b"\033[0m"
_FALLBACK = (80, 24)


def is_drawable(descriptor: int) -> bool:
    """Whether this is a terminal on which lines can be drawn again; NO_COLOR says nothing about that."""
    return os.environ.get("TERM", "dumb") not in ("", "dumb") and os.isatty(descriptor)


def size(descriptor: int) -> tuple[int, int]:
    """Return columns and rows of a terminal, (80, 24) if it does not say."""
    try:
        found = os.get_terminal_size(descriptor)
    except OSError:
        return _FALLBACK
    return (found.columns or _FALLBACK[0], found.lines or _FALLBACK[1])


def is_ours(descriptor: int) -> bool:
    """Whether a terminal is this process's to draw on: it is not while the process is in the background."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return True  # not the terminal that controls us: there is no background on it


class Region:
    """Knows what stands at the bottom of a terminal, and gives the bytes that change it."""

    def __init__(self) -> None:
        """Nothing is drawn yet."""
        self._drawn: tuple[int, ...] = ()

    @property
    def is_drawn(self) -> bool:
        """Whether there are lines of the region on the terminal."""
        return bool(self._drawn)

    def frame(self, above: bytes, lines: Sequence[str], columns: int) -> bytes:
        """Return the bytes that put ``above`` over the region, and the region below it anew.

        Args:
            above: whole lines.
            lines: the region's lines, none of them wider than the terminal; without any the region is gone.
            columns: the terminal's width as it is now.
        """
        if not self._drawn and not lines:
            return above
        drawn = "\r\n".join(lines).encode("utf-8", "replace")
        frame = _BEGIN + self._erased(columns) + above + (_PLAIN + drawn if lines else b"") + _END
        self._drawn = tuple(formatting.width(line) for line in lines)
        return frame

    def left(self) -> bytes:
        """Return the bytes that leave the region where it is; what follows comes below it."""
        was_drawn, self._drawn = self.is_drawn, ()
        return b"\r\n" if was_drawn else b""

    def _erased(self, columns: int) -> bytes:
        """Up to the first line and clear. A terminal that became narrower has wrapped the lines in the meantime."""
        if not self._drawn:
            return b""
        rows = sum(max(-(-width // max(columns, 1)), 1) for width in self._drawn)
        return (b"\033[%dA" % (rows - 1) if rows > 1 else b"") + _ERASE_BELOW
