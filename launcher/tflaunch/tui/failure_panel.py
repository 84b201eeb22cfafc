"""Draw the message about a failure as a panel, which is found at a glance below hundreds of lines of output."""

from __future__ import annotations

import os
from collections.abc import Sequence

_RED, _PLAIN = "\033[1;31m", "\033[0m"
_CORNER, _SIDE, _FOOT, _RULE = (
    "\N{BOX DRAWINGS LIGHT ARC DOWN AND RIGHT}",
    "\N{BOX DRAWINGS LIGHT VERTICAL}",
    "\N{BOX DRAWINGS LIGHT ARC UP AND RIGHT}",
    "\N{BOX DRAWINGS LIGHT HORIZONTAL}",
)


def panel(lines: Sequence[str], columns: int) -> list[str]:
    """Return the lines of a message with a frame to their left; the first line is the title.

    Long lines are left to the terminal, so that a path or a command can be copied in one piece.

    Args:
        lines: the message, without control sequences.
        columns: the width of the terminal.
    """
    red, plain = ("", "") if os.environ.get("NO_COLOR") else (_RED, _PLAIN)
    title = f"{_CORNER}{_RULE} tflaunch: {lines[0]} "
    return [
        f"{red}{title}{_RULE * (columns - 1 - len(title))}{plain}",
        *(f"{red}{_SIDE}{plain} {line}" for line in lines[1:]),
        f"{red}{_FOOT}{_RULE * (columns - 2)}{plain}",
    ]
