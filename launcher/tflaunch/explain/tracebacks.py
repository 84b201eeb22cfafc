"""Read the exception that ended a program, and show it in few lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tflaunch_worker import USAGE_ERROR, failures

_WITHOUT_HEAD = ("SyntaxError", "IndentationError", "TabError")

_NO_NAME = re.compile(r"(?<=\d), in None  \*$")  # of a lambda, as AutoGraph shows its frame


def last_traceback(lines: Sequence[str]) -> list[str]:
    """Return the last complete Python traceback; [] if there is none.

    Of chained tracebacks, only the last one is returned.
    """
    lines = failures.bounded(lines)
    found = failures.find_failure(lines)
    if found is None or found.kind in ("", USAGE_ERROR):
        return []
    start, exception = found.start, found.exception
    is_complete = lines[start].endswith(failures.HEAD) or lines[exception].startswith(_WITHOUT_HEAD)
    lines = [_NO_NAME.sub(", in <lambda>", line) for line in lines]
    frames = [line for line in lines[start:exception] if not failures.LOG_LINE.match(line)]
    if frames[0].endswith(failures.HEAD) and not frames[0].startswith(" "):
        frames[0] = failures.HEAD  # a progress bar may stand before it in the same line
    return frames + lines[exception : found.end] if is_complete else []


def clipped(traceback: list[str], most: int) -> list[str]:
    """Return a traceback in about ``most`` lines: frames of the program, message.

    A message with another traceback in it is replaced by its innermost sentence.

    A traceback that is longer than ``most`` keeps at least 4 lines.
    """
    found = failures.find_failure(traceback)
    if len(traceback) <= most or found is None or found.frame is None:
        return traceback
    message = traceback[found.exception : found.end]
    is_plain = bool(message) and not failures.frames_in(message)
    place = f'File "{found.frame.file}", line {found.frame.line}'
    own = max(number for number, line in enumerate(traceback) if line.lstrip(" |").startswith(place))
    raising = max(number for number in range(found.exception) if traceback[number].lstrip(" |").startswith('File "'))
    lines, last = ([traceback[0]], 0) if most > 4 else ([], own)
    for number in dict.fromkeys([own, raising] if most > 4 and is_plain else [own]):
        source = [line for line in traceback[number + 1 : number + 2] if _depth(line) > _depth(traceback[number])]
        lines += ["  …"] if number > last + 1 else []
        lines += [f"  {line[_depth(traceback[number]) :]}" for line in (traceback[number], *source)]
        last = number + len(source)
    room = max(most - len(lines), 2)
    if is_plain and len(message) <= room:
        return lines + message
    return [*lines, *message[: room - 1], "  …"] if is_plain and found.text in message[0] else [*lines, found.sentence]


def _depth(line: str) -> int:
    """Return how far a line is indented, also in an exception group."""
    return len(line) - len(line.lstrip(" |"))


def failure_words(lines: Sequence[str]) -> str | None:
    """Return the last exception as ``ValueError: bad shape, train.py, line 41``.

    Its cause follows. Return None if the lines tell no failure.
    """
    found = failures.find_failure(failures.bounded(lines))
    if found is None:
        return None
    words = ", ".join(filter(None, [found.sentence, found.place]))
    cause, link = found.cause, found.link
    while cause is not None and cause.cause is not None and cause.link != failures.WHILE_HANDLED:
        link = link if cause.link == failures.CAUSED_BY else cause.link
        cause = cause.cause
    place = cause.place if cause is not None and cause.frame is not None and cause.frame.is_own else ""
    if cause is None or (cause.text == found.text and not place):
        return words
    return f"{words}; {link} {', '.join(filter(None, [cause.sentence, place]))}"
