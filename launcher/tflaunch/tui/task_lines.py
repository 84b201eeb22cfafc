"""Split the output of a task into the lines that a screen shows."""

from __future__ import annotations

from collections.abc import Callable

from tflaunch.store.log_writer import last_state

_LONGEST_PARTIAL = 4 * 1024 * 1024
_LONGEST_BAR = 64 * 1024  # of a line that is drawn again and again
_LAST = 4096  # bytes that are searched for a task's last line


def prefix(task: str, width: int, colour: int | None) -> bytes:
    """Return the prefix of a task's lines, padded to ``width``; ``colour``: of ANSI."""
    text = f"{task:<{width}} | "
    return (f"\033[{colour}m{text}\033[0m" if colour is not None else text).encode()


class TaskLines:
    """Splits the output of one task into complete lines, each with the task's prefix."""

    def __init__(
        self,
        prefix: bytes,
        clean: Callable[[bytes], bytes] | None = None,
        shown: Callable[[bytes], bytes | None] | None = None,
    ) -> None:
        """Begin with the first line.

        ``clean`` removes what a terminal would interpret from lines. ``shown`` removes lines that are not shown from
        others, all joined by newlines, and returns None if none is left.
        """
        self._prefix = prefix
        self._clean = clean
        self._shown = shown
        self._partial = b""
        self._whole = b""

    def feed(self, data: bytes) -> bytes:
        """Take a chunk of output; return the lines that it completes."""
        whole, newline, rest = (self._partial + data).rpartition(b"\n")
        self._partial = rest
        text = self._text(whole) if newline else b""
        if len(self._partial) > (_LONGEST_BAR if b"\r" in data else _LONGEST_PARTIAL):
            text += self.flush()
        return text

    def flush(self) -> bytes:
        """Return an unfinished line as if it were complete."""
        partial, self._partial = self._partial, b""
        return self._text(partial) if partial else b""

    def last(self) -> str:
        """Return the last non-blank line, complete or not. Thread-safe."""
        for text in (self._partial[-_LAST:], self._whole):
            line = last_state(text.rstrip().rpartition(b"\n")[2])
            if line:
                return line.decode("utf-8", "replace")
        return ""

    def _text(self, lines: bytes) -> bytes:
        """Return whole lines as they are shown."""
        shown = lines if self._shown is None else self._shown(lines)
        if shown is None:
            return b""
        if shown and not shown.isspace():
            self._whole = shown[-_LAST:]
        if b"\r" in shown:
            shown = b"\n".join(last_state(line) for line in shown.split(b"\n"))
        if self._clean is not None:
            shown = self._clean(shown)
        return self._prefix + shown.replace(b"\n", b"\n" + self._prefix) + b"\n"
