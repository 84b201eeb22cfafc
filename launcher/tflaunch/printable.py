"""Text from outside, as one line that is safe to show on a terminal and to keep in the journal."""

from __future__ import annotations


def printable(text: str, longest: int = 1000) -> str:
    """Return the text as one line without control characters.

    What could move the cursor, start another line, or not be encoded is written as Python escapes it. The result is
    its own printable form.

    Args:
        text: anything that a host, a program or a file gave us.
        longest: how many characters are kept; a longer text ends in "...".
    """
    if len(text) > longest:
        text = text[: longest - 3] + "..."
    if text.isprintable():
        return text
    line = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
    return line if len(line) <= longest else line[: longest - 3] + "..."
