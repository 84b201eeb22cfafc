"""Write foreign text, durations, ages and signals for people, always in one form."""

import math
import signal

_LONG = ((86_400, "d", 3_600, "{} h"), (3_600, "h", 60, "{:02} min"), (60, "min", 1, "{:02} s"))
_AGES = ((86_400, "d"), (3_600, "h"), (60, "min"))


def printable(text: str, longest: int = 1000) -> str:
    """Return foreign text as one line that is safe for a terminal and for the journal.

    Characters that move the cursor, start a new line, or cannot be encoded are escaped as in Python. A text with more
    than ``longest`` characters ends in "...". The function is idempotent.
    """
    if len(text) > longest:
        text = text[: longest - 3] + "..."
    if text.isprintable():
        return text
    line = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
    return line if len(line) <= longest else line[: longest - 3] + "..."


def duration_words(seconds: float) -> str:
    """Return a duration as ``20 ms``, ``0.4 s``, ``3 min 20 s``, ``2 h 05 min``.

    A rest of zero is left out. The page has the same (`duration` in parts.js).
    """
    if 0 < seconds < 0.05:
        return f"{math.floor(seconds * 1000 + 0.5)} ms"
    if seconds < 9.95:
        return f"{math.floor(max(seconds, 0) * 10 + 0.5) / 10:g} s"
    whole = math.floor(seconds + 0.5)
    for size, unit, part, rest in _LONG:
        if whole >= size:
            parts = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest.format(parts)}" if parts else "")
    return f"{whole} s"


def age_words(seconds: float) -> str:
    """Return a duration in its largest unit: ``5 s ago``, ``3 min ago``, ``3 d ago``."""
    for size, unit in _AGES:
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit} ago"
    return f"{max(int(seconds), 0)} s ago"


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9; ``signal 40`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_words(code: int) -> str:
    """Return how a process ended: ``exited with code 7``, ``was killed by SIGKILL``.

    A negative code is that of a signal: -9 for SIGKILL.
    """
    return f"exited with code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"
