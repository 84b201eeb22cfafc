"""Draw the message about a failure between two rules, which are found at a glance below hundreds of lines of output."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tflaunch.tui import formatting

_RED, _PLAIN = "\033[1;31m", "\033[0m"
_RULE = "\N{BOX DRAWINGS LIGHT HORIZONTAL}"


def panel(lines: Sequence[str], columns: int) -> list[str]:
    """Return the lines of a message between two rules; the first line is in the upper one, as its title.

    Nothing is drawn beside the others: the terminal wraps long ones, and paths and commands are copied in one piece.

    Args:
        lines: the message, without control sequences.
        columns: the width of the terminal.
    """
    red, plain = ("", "") if os.environ.get("NO_COLOR") else (_RED, _PLAIN)
    title = f"{_RULE * 2} tflaunch: {lines[0]} "
    return [
        f"{red}{title}{_RULE * (columns - 1 - formatting.width(title))}{plain}",
        *lines[1:],
        f"{red}{_RULE * (columns - 1)}{plain}",
    ]
