"""Draw the message about a failure between two rules, which are found at a glance below hundreds of lines of output."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Sequence

from tflaunch.tui import formatting

_RED, _PLAIN = "\033[1;31m", "\033[0m"
_RULE = "\N{BOX DRAWINGS LIGHT HORIZONTAL}"
_HINT = "hint: "
_KEPT = "\0"  # instead of a space that must not become the end of a line


def panel(lines: Sequence[str], columns: int) -> list[str]:
    """Return the lines of a message between two rules; the first line is in the upper one, as its title.

    Sentences are wrapped between words, and never inside a command. Nothing is drawn beside the other lines: the
    terminal wraps long ones, and paths and commands are copied in one piece.

    Args:
        lines: the message, without control sequences.
        columns: the width of the terminal.
    """
    red, plain = ("", "") if os.environ.get("NO_COLOR") else (_RED, _PLAIN)
    title, *more = _wrapped(f"{_RULE * 2} tflaunch: {lines[0]} ", columns)
    rest = [piece for line in lines[1:] for piece in (_wrapped(line, columns) if line.startswith(_HINT) else [line])]
    return [
        f"{red}{title} {_RULE * (columns - 2 - formatting.width(title))}{plain}",
        *(f"{red}{piece}{plain}" for piece in more),
        *rest,
        f"{red}{_RULE * (columns - 1)}{plain}",
    ]


def _wrapped(sentence: str, columns: int) -> list[str]:
    kept = re.sub("`[^`]*`", lambda command: command[0].replace(" ", _KEPT), sentence)
    pieces = textwrap.wrap(kept, columns - 2, break_long_words=False, break_on_hyphens=False)
    return [piece.replace(_KEPT, " ") for piece in pieces]
