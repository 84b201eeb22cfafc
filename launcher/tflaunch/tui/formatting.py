"""Make foreign text and progress bars fit a table: as wide as they look."""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x07|\x1b\\|$)|[ -/]*[0-~])")
_JOINING = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff]")
"""Parts of Korean syllables and flags, and skin tones: some terminals merge them with their neighbours."""


class Cell(NamedTuple):
    """A text and its rich style."""

    text: str
    style: str = ""


def plain(text: str | None, limit: int = 1000) -> str:
    """Return the part of a text with the same width on every terminal: no escapes, nothing that combines.

    Args:
        text: any text; None gives "".
        limit: maximum number of characters to examine.
    """
    if text is None:
        return ""
    composed = _JOINING.sub("", unicodedata.normalize("NFC", _ESCAPE.sub("", text[:limit])))
    if composed.isascii() and composed.isprintable():
        return composed
    return "".join(_shown(character) for character in composed)


def width(text: str) -> int:
    """Return the number of columns a text occupies; escape sequences occupy none."""
    from rich.cells import cell_len  # a dumb terminal needs nothing of rich

    return cell_len(plain(text, len(text)))


def _shown(character: str) -> str:
    if character == "\t":
        return " "
    if unicodedata.category(character)[0] in "CM":
        return ""
    return " " if character.isspace() else character


def bar(fraction: float, width: int = 8) -> str:
    """Return a progress bar of ``width`` columns and its percentage."""
    fraction = min(max(fraction, 0.0), 1.0)
    full = int(fraction * width)
    return f"{'━' * full}{'─' * (width - full)} {int(fraction * 100):>3}%"
