"""Make foreign text, output of tasks, progress bars and failures fit a terminal."""

import os
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x07|\x1b\\|$)|[ -/]*[0-~])")
_JOINING = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff]")
"""Parts of Korean syllables and flags, and skin tones: some terminals merge them with their neighbours."""
_RED, _PLAIN = "\033[1;31m", "\033[0m"
_RULE = "\N{BOX DRAWINGS LIGHT HORIZONTAL}"
_HINT = "hint: "
_KEPT = "\0"  # instead of a space that must not become the end of a line
_CONTROLS = bytes({*range(32), 127} - {ord("\t"), ord("\n")})
_SEQUENCE = re.compile(
    rb"(?P<colour>\x1b\[[0-9;:]*m)"
    rb"|\x1b\[[0-?]*[ -/]*[@-~]"  # cursor movement, clearing, mode switches
    rb"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles and links, queries that the terminal answers
    rb"|\x1b[ -/]*[0-~]"
    rb"|[\x00-\x08\x0b-\x1f\x7f]"
    rb"|\xc2[\x80-\x9f]"  # the same controls encoded as one UTF-8 character
    rb"|\xe2(?:\x80[\xaa-\xae]|\x81[\xa6-\xa9])"  # U+202A to U+202E, U+2066 to U+2069: they reorder what is read
    rb"|\xc2(?![\xa0-\xbf])|\xe2(?![\x80-\xbf]{2})[\x80-\xbf]?"
    # a part of one, which must not join the others when the text between is removed
)
_LONG_CONTROL = re.compile(rb"\xc2|\xe2[\x80\x81]")
_COLOURED = re.compile(rb"\x1b[^\n]*")
_RESET = b"\033[0m"


class Cell(NamedTuple):
    """A text and its rich style."""

    text: str
    style: str = ""


def plain(text: str | None, limit: int = 1000) -> str:
    """Return a text without what has another width on some terminals: escapes, marks."""
    if text is None:
        return ""
    composed = _JOINING.sub("", unicodedata.normalize("NFC", _ESCAPE.sub("", text[:limit])))
    if composed.isascii() and composed.isprintable():
        return composed
    return "".join(_shown(character) for character in composed)


def width(text: str) -> int:
    """Return the number of columns a text occupies; escape sequences occupy none."""
    from rich.cells import cell_len  # rich takes 20 ms, and only terminals need it

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


def failure_panel(lines: Sequence[str], columns: int) -> list[str]:
    """Return the lines of a message between two rules, with the first as the title.

    Sentences are wrapped between words, and never inside a command. Nothing is drawn beside the other lines: the
    terminal wraps long ones, and paths and commands are copied in one piece.
    """
    red, plain = ("", "") if os.environ.get("NO_COLOR") else (_RED, _PLAIN)
    title, *more = _wrap_sentence(f"{_RULE * 2} tflaunch: {lines[0]} ", columns)
    rest = [
        piece for line in lines[1:] for piece in (_wrap_sentence(line, columns) if line.startswith(_HINT) else [line])
    ]
    return [
        f"{red}{title} {_RULE * (columns - 2 - width(title))}{plain}",
        *(f"{red}{piece}{plain}" for piece in more),
        *rest,
        f"{red}{_RULE * (columns - 1)}{plain}",
    ]


def _wrap_sentence(sentence: str, columns: int) -> list[str]:
    kept = re.sub("`[^`]*`", lambda command: command[0].replace(" ", _KEPT), sentence)
    pieces = textwrap.wrap(kept, columns - 2, break_long_words=False, break_on_hyphens=False)
    return [piece.replace(_KEPT, " ") for piece in pieces]


def without_commands(lines: bytes) -> bytes:
    """Return whole lines without controls and escapes; colours end with their line.

    A task must not clear the terminal, change its title, or colour other tasks' lines.
    """
    if _is_plain(lines):
        return lines
    shown = _SEQUENCE.sub(rb"\g<colour>", lines)
    return _COLOURED.sub(lambda found: found[0] + _RESET, shown)


def as_text(line: bytes) -> str:
    """Return a line as plain text, without controls, escape sequences and colours."""
    return (line if _is_plain(line) else _SEQUENCE.sub(b"", line)).decode("utf-8", "replace")


def _is_plain(lines: bytes) -> bool:
    """Whether nothing is to remove, a hundred times faster than by `_SEQUENCE`."""
    return len(lines.translate(None, _CONTROLS)) == len(lines) and _LONG_CONTROL.search(lines) is None
