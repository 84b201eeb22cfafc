"""Where words reach people: prefixed lines of the tasks on stdout, tflaunch's own on stderr.

One thread writes, from one queue, so lines are never torn and a reader that stops (a full pipe,
Ctrl-S) never stops the supervisor. On a terminal the same thread keeps a view of the run below the lines.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tflaunch.logs.lines import last_state

if TYPE_CHECKING:
    from tflaunch.view.live import LiveView

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_STDOUT, _STDERR = 1, 2
_LONGEST_PARTIAL = 64 * 1024
_BATCH = 64 * 1024  # bytes that are written at once, even if the view was drawn just now
_LAST = 4096  # bytes in which the last line of a task is looked for


class _Item(NamedTuple):
    """Something to write, and what to call when it is written."""

    descriptor: int
    data: bytes
    done: Callable[[], None] | None


class Screen:
    """Writes what tasks and tflaunch say."""

    shows_output = True

    def __init__(self, tasks: Sequence[str]) -> None:
        """Prepare for these tasks: their names are padded to one width and coloured on a terminal."""
        width = max((len(task) for task in tasks), default=0)
        is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._lines = {
            task: _Lines(_prefix(task, width, _COLOURS[number % len(_COLOURS)] if is_coloured else None))
            for number, task in enumerate(tasks)
        }
        self._live = self._view() if os.isatty(_STDOUT) else None
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        self._is_closed: set[int] = set()

    @property
    def is_live(self) -> bool:
        """Whether a view is drawn below the lines, so that `update` is worth its while."""
        return self._live is not None

    def update(self, status: Mapping[str, Any]) -> None:
        """Draw this status below the lines from now on; only the newest counts.

        Args:
            status: what `tflaunch ps --json` prints. It must not be changed afterwards.
        """
        if self._live is not None and self._live.update(status):
            self._put(_STDOUT, b"", None)

    def show(self, task: str, data: bytes, done: Callable[[], None]) -> None:
        """Show output of a task as it came; ``done`` is called by another thread once it is written."""
        text = self._lines[task].feed(data)
        if text:
            self._put(_STDOUT, text, done)
        else:
            done()

    def finish(self, task: str) -> None:
        """Show what a task wrote without ending its line."""
        text = self._lines[task].flush()
        if text:
            self._put(_STDOUT, text, None)

    def say(self, message: str, is_failure: bool = False) -> None:
        """Show a message of tflaunch itself; on a terminal the first line of a failure is red."""
        lines = [f"tflaunch: {line}" for line in message.splitlines()]
        if is_failure and lines and os.isatty(_STDERR) and not os.environ.get("NO_COLOR"):
            lines[0] = f"\033[1;31m{lines[0]}\033[0m"
        text = "".join(f"{line}\n" for line in lines)
        self._put(_STDERR, text.encode("utf-8", "replace"), None)

    def close(self) -> None:
        """Wait until everything is written; the view is gone then."""
        if self._writer is not None:
            self._queue.put(None)
            self._writer.join()
            self._writer = None

    def _put(self, descriptor: int, data: bytes, done: Callable[[], None] | None) -> None:
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_all, name="screen", daemon=True)
            self._writer.start()
        self._queue.put(_Item(descriptor, data, done))

    def _write_all(self) -> None:
        if self._live is not None:
            self._write_with_view(self._live)
            return
        while (item := self._queue.get()) is not None:
            self._write(item.descriptor, item.data)
            if item.done is not None:
                item.done()

    def _view(self) -> LiveView | None:
        from tflaunch.view import live, terminal

        is_live = terminal.is_drawable(_STDOUT) and terminal.is_one(_STDOUT, _STDERR)
        return live.LiveView(_STDOUT, self._last_lines) if is_live else None

    def _write_with_view(self, live: LiveView) -> None:
        """Write what has gathered since the last frame in one piece, and the view below it."""
        is_open = True
        while is_open:
            items, is_open = self._gather(live.patience, live.next_frame)
            self._write(_STDOUT, live.frame(b"".join(item.data for item in items)))
            for item in items:
                if item.done is not None:
                    item.done()
        self._write(_STDOUT, live.end())

    def _gather(self, patience: float | None, until: float) -> tuple[list[_Item], bool]:
        """Return what is to be written next, and whether more may follow.

        Args:
            patience: seconds to wait for something to write, None for as long as it takes.
            until: when to stop waiting for more, on the monotonic clock.
        """
        items: list[_Item] = []
        size = 0
        try:
            item = self._queue.get(timeout=patience)
            while item is not None:
                items.append(item)
                size += len(item.data)
                if size >= _BATCH:
                    return items, True
                item = self._queue.get(timeout=max(until - time.monotonic(), 0))
        except queue.Empty:
            return items, True
        return items, False

    def _last_lines(self) -> dict[str, str]:
        """The last line of each task, as far as it was shown or is being written."""
        return {task: lines.last() for task, lines in self._lines.items()}

    def _write(self, descriptor: int, data: bytes) -> None:
        if descriptor in self._is_closed:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError:
            # The reader has gone (`| head`) or the terminal has: the job goes on, its logs are complete.
            self._is_closed.add(descriptor)


def _prefix(task: str, width: int, colour: int | None) -> bytes:
    text = f"{task:<{width}} | "
    return (f"\033[{colour}m{text}\033[0m" if colour is not None else text).encode()


class _Lines:
    """Cuts the output of one task into whole lines, each with the task's prefix."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._partial = b""
        self._whole = b""

    def feed(self, data: bytes) -> bytes:
        """Take output as it came; return the lines that it completes."""
        whole, newline, rest = (self._partial + data).rpartition(b"\n")
        self._partial = rest
        text = self._with_prefix(whole) if newline else b""
        self._remember(whole)
        if len(self._partial) > _LONGEST_PARTIAL:
            text += self.flush()
        return text

    def flush(self) -> bytes:
        """Return an unfinished line as if it were finished."""
        partial, self._partial = self._partial, b""
        self._remember(partial)
        return self._with_prefix(partial) if partial else b""

    def last(self) -> str:
        """Return the last line that says something, finished or not. Any thread may ask."""
        for text in (self._partial[-_LAST:], self._whole):
            line = last_state(text.rstrip().rpartition(b"\n")[2])
            if line:
                return line.decode("utf-8", "replace")
        return ""

    def _remember(self, text: bytes) -> None:
        if text and not text.isspace():
            self._whole = text[-_LAST:]

    def _with_prefix(self, lines: bytes) -> bytes:
        if b"\r" in lines:
            lines = b"\n".join(last_state(line) for line in lines.split(b"\n"))
        return self._prefix + lines.replace(b"\n", b"\n" + self._prefix) + b"\n"
