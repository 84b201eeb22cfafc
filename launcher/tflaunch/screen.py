"""Where words reach people: prefixed lines of the tasks on stdout, tflaunch's own on stderr.

One thread writes, from one queue, so lines are never torn and a reader that stops (a full pipe,
Ctrl-S) never stops the supervisor.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_STDOUT, _STDERR = 1, 2
_LONGEST_PARTIAL = 64 * 1024


class Screen:
    """Writes what tasks and tflaunch say."""

    def __init__(self, tasks: Sequence[str]) -> None:
        """Prepare for these tasks: their names are padded to one width and coloured on a terminal."""
        width = max((len(task) for task in tasks), default=0)
        is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._lines = {
            task: _Lines(_prefix(task, width, _COLOURS[number % len(_COLOURS)] if is_coloured else None))
            for number, task in enumerate(tasks)
        }
        self._queue: queue.SimpleQueue[tuple[int, bytes, Callable[[], None] | None] | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        self._is_closed: set[int] = set()

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

    def say(self, message: str) -> None:
        """Show a message of tflaunch itself."""
        text = "".join(f"tflaunch: {line}\n" for line in message.splitlines())
        self._put(_STDERR, text.encode("utf-8", "replace"), None)

    def close(self) -> None:
        """Wait until everything is written."""
        if self._writer is not None:
            self._queue.put(None)
            self._writer.join()
            self._writer = None

    def _put(self, descriptor: int, data: bytes, done: Callable[[], None] | None) -> None:
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_all, name="screen", daemon=True)
            self._writer.start()
        self._queue.put((descriptor, data, done))

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            descriptor, data, done = item
            if descriptor not in self._is_closed:
                self._write(descriptor, data)
            if done is not None:
                done()

    def _write(self, descriptor: int, data: bytes) -> None:
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

    def feed(self, data: bytes) -> bytes:
        """Take output as it came; return the lines that it completes."""
        whole, newline, rest = (self._partial + data).rpartition(b"\n")
        self._partial = rest
        text = self._with_prefix(whole) if newline else b""
        if len(self._partial) > _LONGEST_PARTIAL:
            text += self.flush()
        return text

    def flush(self) -> bytes:
        """Return an unfinished line as if it were finished."""
        partial, self._partial = self._partial, b""
        return self._with_prefix(partial) if partial else b""

    def _with_prefix(self, lines: bytes) -> bytes:
        if b"\r" in lines:
            lines = b"\n".join(_last_state(line) for line in lines.split(b"\n"))
        return self._prefix + lines.replace(b"\n", b"\n" + self._prefix) + b"\n"


def _last_state(line: bytes) -> bytes:
    """What a terminal would show of a line in which a progress bar overwrote itself."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]
