"""Make foreign text one line that is safe for a terminal and for the journal."""

from __future__ import annotations


def printable(text: str, longest: int = 1000) -> str:
    """Return the text as one line without control characters.

    Characters that move the cursor, start a new line, or cannot be encoded are escaped as in Python. The function
    is idempotent.

    Args:
        text: any text from a host, a program or a file.
        longest: maximum number of characters; a longer text ends in "...".
    """
    if len(text) > longest:
        text = text[: longest - 3] + "..."
    if text.isprintable():
        return text
    line = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
    return line if len(line) <= longest else line[: longest - 3] + "..."
