"""A status that is redrawn: below a run's output, or alone in another terminal."""

import sys
import time
from collections.abc import Callable, Iterable, Mapping

from tflaunch.explain.run_status import Status
from tflaunch.tui import layout, terminal

_STDOUT = 1
_FRAME = 0.1  # seconds between frames, unless there is a lot to write


class LiveView:
    """A status at the bottom of stdout's terminal. One thread draws, any updates it."""

    def __init__(self, last_lines: Callable[[], Mapping[str, str]]) -> None:
        """``last_lines`` returns each task's last line."""
        self._last_lines = last_lines
        self._region = terminal.Region()
        self._status: Status | None = None
        self._is_asked = False
        self._size = (0, 0)
        self._lines: list[str] = []
        self._rendered_at = 0.0
        self._is_stale = False
        self._next_frame = 0.0

    @property
    def is_drawn(self) -> bool:
        """Whether the terminal shows the view."""
        return self._region.is_drawn

    @property
    def next_frame(self) -> float:
        """When the next frame is due, on the monotonic clock; output can wait for it."""
        return self._next_frame if self._region.is_drawn else 0.0

    @property
    def patience(self) -> float | None:
        """Seconds until a frame is needed without output; None if none is."""
        return max(self._next_frame - time.monotonic(), 0) if self._is_stale else None

    def update(self, status: Status) -> bool:
        """Set a newer status; return whether to request a frame, False if one is pending."""
        self._status = status
        if self._is_asked:
            return False
        self._is_asked = True
        return True

    def frame(self, above: bytes) -> bytes:
        """Return the bytes that print whole lines above the view and redraw the view."""
        self._is_asked = False  # before the status is read: a newer one then requests another frame
        status = self._status
        if status is None or not terminal.is_ours(_STDOUT):
            return self._removed(above)
        if not self._region.is_drawn:
            terminal.keep_unread(_STDOUT, is_kept=True)
        self._render(status)
        frame = self._region.frame(above, self._lines)
        self._next_frame = time.monotonic() + _FRAME
        return frame

    def end(self, above: bytes) -> bytes:
        """Return the bytes that print whole lines in place of the view."""
        self.hide()
        return self._removed(above)

    def hide(self) -> None:
        """Have the next frame remove the view, which the next status draws again."""
        self._status = None

    def let_go(self) -> None:
        """Leave the terminal as it was, once everything is written."""
        terminal.keep_unread(_STDOUT, is_kept=False)

    def _removed(self, above: bytes) -> bytes:
        """Return the bytes that print lines in place of the view, or in the background."""
        self._is_stale = False
        if not terminal.is_ours(_STDOUT):
            self._region = terminal.Region()
        return self._region.frame(above, [])

    def _render(self, status: Status) -> None:
        """Render the view, unless it was rendered just now."""
        columns, rows = size = terminal.size(_STDOUT)
        now = time.monotonic()
        self._is_stale = size == self._size and now - self._rendered_at < _FRAME
        if self._is_stale:
            return
        self._size, self._rendered_at = size, now
        # Keep the last column free: a terminal with text there may wrap what the user types.
        height = max(min(rows // 2, rows - 2), 1)
        try:
            lines = self._last_lines()
            tasks = tuple(task._replace(last_line=lines.get(task.task) or task.last_line) for task in status.tasks)
            self._lines = layout.render(status._replace(tasks=tasks), max(columns - 1, 1), height, time.time())
        except Exception:  # noqa: BLE001 (a failed rendering must not stop the output)
            self._lines = []


def watch(statuses: Iterable[Status]) -> None:
    """Show each status in place of the previous one; the last stays on the screen.

    If the output cannot be redrawn, each status is printed as a table, separated by empty lines.
    """
    if terminal.is_drawable(_STDOUT):
        _draw(statuses)
    else:
        separator = ""
        for status in statuses:
            _write((separator + layout.table(status)).encode("utf-8", "replace"))
            separator = "\n"


def _draw(statuses: Iterable[Status]) -> None:
    region = terminal.Region()
    terminal.clear_before_stop(lambda: _write(region.frame(b"", [])))
    terminal.keep_unread(_STDOUT, is_kept=True)
    try:
        for status in statuses:
            columns, rows = terminal.size(_STDOUT)
            lines = layout.render(status, max(columns - 1, 1), max(rows - 1, 1), time.time())
            _write(region.frame(b"", lines))
    finally:
        _write(region.left())
        terminal.keep_unread(_STDOUT, is_kept=False)


def _write(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
