"""Filter task output for a terminal: keep text in its order, and colours. Pure."""

from __future__ import annotations

import re

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


def without_commands(lines: bytes) -> bytes:
    """Return whole lines without controls and escapes; colours end with their line.

    A task must not clear the terminal, change its title, or colour other tasks' lines.
    """
    if _is_plain(lines):
        return lines
    shown = _SEQUENCE.sub(_colour_only, lines)
    return _COLOURED.sub(lambda found: found[0] + _RESET, shown)


def as_text(line: bytes) -> str:
    """Return a line as plain text, without controls, escape sequences and colours."""
    return (line if _is_plain(line) else _SEQUENCE.sub(b"", line)).decode("utf-8", "replace")


def _is_plain(lines: bytes) -> bool:
    """Whether nothing is to remove, a hundred times faster than by `_SEQUENCE`."""
    return len(lines.translate(None, _CONTROLS)) == len(lines) and _LONG_CONTROL.search(lines) is None


def _colour_only(found: re.Match[bytes]) -> bytes:
    return found["colour"] or b""
