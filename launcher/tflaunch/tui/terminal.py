"""Keep lines at the bottom of a terminal while other output scrolls above them.

No mode has to be reset afterwards: the cursor is hidden only while a frame is written, so a process that is
killed leaves a working terminal.
"""

import os
import signal
import termios
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType

_BEGIN, _END = b"\033[?2026h\033[?25l", b"\033[?25h\033[?2026l"
"""Around a frame: show it atomically on terminals that support synchronized updates, and hide the cursor."""
_ERASE_BELOW = b"\r \033[J\r\033[K"  # not from the first cell: tmux would keep a screen that is erased from there
_CUT, _WRAP = b"\033[?7l", b"\033[?7h"  # what is wider than the terminal, which may have become narrower just now
_PLAIN = b"\033[0m"
_FALLBACK = (80, 24)


def is_drawable(descriptor: int) -> bool:
    """Whether this is a terminal that can be redrawn; independent of NO_COLOR."""
    return os.environ.get("TERM", "dumb") not in ("", "dumb") and os.isatty(descriptor)


def width_of_stdout() -> int | None:
    """Return the columns of the terminal that is stdout; None for a pipe or file."""
    return size(1)[0] if os.isatty(1) else None


def size(descriptor: int) -> tuple[int, int]:
    """Return columns and rows of a terminal, (80, 24) if unknown."""
    try:
        found = os.get_terminal_size(descriptor)
    except OSError:
        return _FALLBACK
    return (found.columns or _FALLBACK[0], found.lines or _FALLBACK[1])


def is_ours(descriptor: int) -> bool:
    """Whether this process may draw on a terminal: not while it is in the background."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return True  # not our controlling terminal, so it has no background processes


def keep_unread(descriptor: int, is_kept: bool) -> None:
    """Let the kernel keep unread output when Ctrl-C or Ctrl-Z is pressed.

    Usually it discards that, which may be half a frame, or lines of tasks. The mode does no harm if it is left so.
    """
    if is_ours(descriptor):  # the kernel stops processes in the background that change modes
        with suppress(termios.error):
            modes = termios.tcgetattr(descriptor)
            modes[3] = modes[3] | termios.NOFLSH if is_kept else modes[3] & ~termios.NOFLSH
            termios.tcsetattr(descriptor, termios.TCSANOW, modes)


def clear_before_stop(clear: Callable[[], None]) -> None:
    """Let Ctrl-Z, unless handled already, call ``clear`` before it stops us."""

    def stop(number: int, frame: FrameType | None) -> None:
        clear()
        os.kill(os.getpid(), signal.SIGSTOP)

    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
        signal.signal(signal.SIGTSTP, stop)


class Region:
    """Tracks what is drawn at a terminal's bottom, and returns bytes that change it.

    Between frames, the cursor is where the region begins. What a resize does to the region's lines depends on the
    terminal: it wraps them, cuts them, or scrolls them up. But the cursor stays with its text, so what follows it is
    the region. A saved position would be that of a screen which the terminal may have changed without having said so.
    """

    def __init__(self) -> None:
        """Start with nothing drawn."""
        self._lines: Sequence[str] = ()

    @property
    def is_drawn(self) -> bool:
        """Whether the terminal shows lines of the region."""
        return bool(self._lines)

    def frame(self, above: bytes, lines: Sequence[str]) -> bytes:
        """Return the bytes that print whole lines ``above``, and redraw the region.

        It has fewer ``lines`` than the terminal; without any, it is removed.
        """
        if not self._lines and not lines:
            return above
        frame = _BEGIN + (_ERASE_BELOW if self._lines else b"") + above
        if lines:
            up = b"\033[%dA" % (len(lines) - 1) if len(lines) > 1 else b""
            frame += _PLAIN + _CUT + _joined(lines) + _WRAP + up + b"\r"
        self._lines = lines
        return frame + _END

    def left(self) -> bytes:
        """Return the bytes that leave the region in place; later output comes below it."""
        lines, self._lines = self._lines, ()
        return _ERASE_BELOW + _joined(lines) + b"\r\n" if lines else b""


def _joined(lines: Sequence[str]) -> bytes:
    return "\r\n".join(lines).encode("utf-8", "replace")
