"""What a terminal may be shown of lines that tasks wrote: text and colours. Pure."""

from __future__ import annotations

import re

_CONTROLS = bytes({*range(32), 127} - {ord("\t"), ord("\n")})
_SEQUENCE = re.compile(
    rb"(?P<colour>\x1b\[[0-9;:]*m)"
    rb"|\x1b\[[0-?]*[ -/]*[@-~]"  # moves the cursor, clears, switches modes
    rb"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # sets titles and links, asks the terminal for answers
    rb"|\x1b[ -/]*[0-~]"
    rb"|[\x00-\x08\x0b-\x1f\x7f]"
    rb"|\xc2[\x80-\x9f]"  # the same controls as one character of UTF-8
    rb"|\xc2(?![\xa0-\xbf])"  # half of one, which must not meet the other half when what is between goes
)
_COLOURED = re.compile(rb"\x1b[^\n]*")
_RESET = b"\033[0m"


def without_commands(lines: bytes) -> bytes:
    """Return lines without control characters and escape sequences, except colours, which end with their line.

    A task must not clear the terminal, change its title, or leave it red for the lines of others.

    Args:
        lines: whole lines, with or without the last newline.
    """
    if len(lines.translate(None, _CONTROLS)) == len(lines) and b"\xc2" not in lines:
        return lines  # as nearly always, and a hundred times faster than the expression
    shown = _SEQUENCE.sub(_colour_only, lines)
    return _COLOURED.sub(lambda found: found[0] + _RESET, shown)


def _colour_only(found: re.Match[bytes]) -> bytes:
    return found["colour"] or b""
