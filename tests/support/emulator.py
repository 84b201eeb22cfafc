"""Terminals that are resized, with what has scrolled away.

pyte moves lines when its screen becomes lower, which no terminal does. What a resize or a look costs does not grow with
the lines that were ever written: else a busy machine falls behind a program that goes on writing, for good.
"""

from typing import Any

import pyte

_MOST_ROWS = 200
"""So many lines that have scrolled away may come back when the terminal becomes taller."""


class Emulator:
    """A terminal; ``wraps``: a resize wraps lines that are too long, as in most, or cuts them, as in xterm."""

    def __init__(self, columns: int, rows: int, wraps: bool) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=100_000)
        self.gone: list[str] = []
        """The lines that will not come back."""
        self._stream = pyte.ByteStream(self.screen)
        self._wraps = wraps

    def feed(self, data: bytes) -> None:
        """Show bytes, as they come out of a terminal's line discipline."""
        self._stream.feed(data)
        scrolled = self.screen.history.top
        while len(scrolled) > _MOST_ROWS:
            self.gone.append("".join(_text_of(scrolled.popleft())).rstrip())

    def lines(self) -> list[str]:
        """Return everything, from the first line that has scrolled away to the last that is not empty."""
        return [*self.gone, *self.last_lines()]

    def last_lines(self) -> list[str]:
        """Return what is shown, and the last lines that have scrolled away."""
        lines = ["".join(text).rstrip() for text in self._rows()]
        return "\n".join(lines).rstrip("\n").split("\n")

    def resize(self, columns: int, rows: int) -> None:
        """Resize the terminal: the cursor stays with its text, and lines below it are lost where there is no room."""
        screen, top = self.screen, len(self.screen.history.top)
        whole, cursor = self._rows(), top + self.screen.cursor.y
        texts: list[list[str]] = []
        at = (0, 0)
        for number, text in enumerate(whole):
            if number == top:
                top = len(texts)
            shown = _stripped(text)
            parts = range(0, max(len(shown), 1), columns) if self._wraps else (0,)
            if number == cursor:
                at = (len(texts) + screen.cursor.x // columns * self._wraps, screen.cursor.x % columns)
            texts += [shown[part : part + columns] for part in parts]
        while len(texts) > at[0] + 1 and not texts[-1]:
            texts.pop()
        top = max(min(top, at[0]), at[0] - rows + 1)
        if len(texts) - top < rows:  # what has scrolled away comes back
            top = max(len(texts) - rows, 0)
        self._fill(texts, top, (columns, rows), at)

    def _fill(self, texts: list[list[str]], top: int, size: tuple[int, int], at: tuple[int, int]) -> None:
        screen = self.screen
        attributes = screen.cursor.attrs
        screen.resize(size[1], size[0])
        screen.history.top.clear()
        screen.buffer.clear()
        for number, text in enumerate(texts[: top + size[1]]):
            row: Any = pyte.screens.StaticDefaultDict(screen.default_char)
            row.update({column: screen.default_char._replace(data=sign) for column, sign in enumerate(text)})
            if number < top:
                screen.history.top.append(row)
            else:
                screen.buffer[number - top] = row
        screen.cursor.y, screen.cursor.x, screen.cursor.attrs = at[0] - top, at[1], attributes

    def _rows(self) -> list[list[str]]:
        screen = self.screen
        rows = [*screen.history.top, *(screen.buffer[number] for number in range(screen.lines))]
        return [_text_of(row) for row in rows]


def _text_of(row: Any) -> list[str]:
    return [row[column].data for column in range(max(row, default=-1) + 1)]


def _stripped(text: list[str]) -> list[str]:
    while text and text[-1] == " ":
        text = text[:-1]
    return text
