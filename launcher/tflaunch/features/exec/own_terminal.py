"""The terminal of the user, while it belongs to a program on another host."""

from __future__ import annotations

import os
import signal
import termios
import tty
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from tflaunch.tui import terminal

if TYPE_CHECKING:
    from typing_extensions import Self

_READ = 4096


class OwnTerminal:
    """A terminal that passes on all keys as bytes, Ctrl-C and Ctrl-Z too.

    ``changes`` is readable after its size has changed.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before = termios.tcgetattr(descriptor)
        self.changes, self._changed = os.pipe()

    def __enter__(self) -> Self:
        """Take the terminal."""
        # After a stop, which CONT ends, a shell has changed its modes.
        changing = (signal.SIGWINCH, signal.SIGCONT)
        self._handlers = {number: signal.signal(number, self._note_change) for number in changing}
        tty.setraw(self._descriptor, termios.TCSADRAIN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it back as it was."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        try:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
        except termios.error:
            pass  # it is gone
        os.close(self.changes)
        os.close(self._changed)

    def take_change(self) -> dict[str, int]:
        """Return its size after a change."""
        os.read(self.changes, _READ)
        tty.setraw(self._descriptor, termios.TCSADRAIN)
        return self.size

    @property
    def size(self) -> dict[str, int]:
        """Its columns and rows, by these names."""
        columns, rows = terminal.size(self._descriptor)
        return {"columns": columns, "rows": rows}

    def _note_change(self, number: int, frame: FrameType | None) -> None:
        os.write(self._changed, b"!")
