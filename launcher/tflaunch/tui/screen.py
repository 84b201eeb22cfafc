"""Print a run: prefixed task output on stdout, tflaunch's own messages on stderr.

Dedicated threads write, so lines are never torn and a reader that stops (a full pipe, Ctrl-S) never blocks the
supervisor. On a terminal the same thread keeps a live view of the run below the lines.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tflaunch.explain.run_status import Status
from tflaunch.explain.startup_messages import StartupMessages
from tflaunch.store.log_sink import OutputSink
from tflaunch.store.log_writer import Kept, last_state
from tflaunch.tui import formatting, terminal
from tflaunch.tui.backlog import Backlog, Piece, Writer
from tflaunch.tui.fold import LiveFold
from tflaunch_worker.readable import printable

if TYPE_CHECKING:
    from tflaunch.tui.live import LiveView

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_COLOUR = r"\x1b\[[0-9;]*m"
_LONGEST_LINE = 10_000
_STDOUT, _STDERR = 1, 2
_BATCH = 64 * 1024  # bytes that are written at once, even just after a redraw of the view
_STOP_PATIENCE = 1.0  # seconds for a terminal that takes nothing, before Ctrl-Z stops this process
_LONGEST_PARTIAL = 4 * 1024 * 1024
_LONGEST_BAR = 64 * 1024  # of a line that is drawn again and again
_LAST = 4096  # bytes that are searched for a task's last line


class Screen(OutputSink):
    """Prints output and messages. Its methods block on no reader unless documented."""

    shows_output = True

    def __init__(
        self, tasks: Sequence[str], is_verbose: bool = False, is_quiet: bool = False, is_folding: bool | None = None
    ) -> None:
        """Prepare for these tasks: names are padded, and coloured on a terminal.

        TensorFlow's start-up messages are hidden where people read, which is where output and messages go to the same
        terminal or file, unless ``is_verbose``. With ``is_quiet``, there is no view, and of tflaunch's messages only
        warnings and failures are shown.

        Equal lines of several tasks are folded on a terminal, unless ``is_folding`` says otherwise. A pipe or file gets
        all lines, each with its task's name: programs search them.
        """
        self._is_quiet = is_quiet
        width = max((len(task) for task in tasks), default=0)
        is_terminal = os.isatty(_STDOUT)
        is_coloured = is_terminal and not os.environ.get("NO_COLOR")
        is_one = _is_one_stream()
        clean = formatting.without_commands if is_terminal else None
        self._startup = StartupMessages() if is_one and not is_verbose else None
        startup = self._startup
        shown = {task: None if startup is None else partial(startup.without, task) for task in tasks}
        colours = {task: _COLOURS[number % len(_COLOURS)] if is_coloured else None for number, task in enumerate(tasks)}
        prefixes = {task: prefix(task, width, colour) for task, colour in colours.items()}
        self._lines = {task: TaskLines(words, clean, shown[task]) for task, words in prefixes.items()}
        folds = (is_terminal if is_folding is None else is_folding) and len(tasks) > 1
        self._fold = LiveFold(prefixes, time.monotonic) if folds else None
        self._live = self._view() if is_terminal and is_one and not is_quiet else None
        own = _STDERR if is_one and self._live is None else _STDOUT
        self._out = Writer(Backlog(is_terminal), self._write_with_view if self._live else self._write_lines, own)
        self._is_loss_told = False
        # With a reader of its own, a message does not wait for the reader of the output.
        self._err = self._out if is_one else Writer(Backlog(False), self._write_lines, _STDERR)

    @property
    def is_live(self) -> bool:
        """Whether a view is drawn below the lines, so that `update` has an effect."""
        return self._live is not None

    @property
    def output_error(self) -> OSError | None:
        """Why output could not be written: BrokenPipeError without a reader; else None."""
        return self._out.errors.get(_STDOUT)

    def update(self, status: Status) -> None:
        """Draw this status below the lines from now on, replacing any earlier one."""
        if self._live is not None and self._live.update(status):
            self._out.add(Piece(None, b""))

    def show(self, task: str, data: bytes, kept: Kept | None) -> None:
        """Show output of a task as received.

        ``kept``: where its log has the same bytes, which are read from there if the reader is slow; None if no log has.
        """
        if self.output_error is None:
            self._out.add(Piece(task, data), kept)

    def finish(self, task: str) -> None:
        """Show the unfinished last line of a task."""
        self._out.add(Piece(task, b"", ends_line=True))

    def say(self, message: str, is_failure: bool = False) -> None:
        """Show a message of tflaunch itself, which may quote text from hosts and tasks.

        On a terminal a failure is a panel.
        """
        if self._is_quiet and not is_failure and not message.startswith("warning:"):
            return
        lines = [_quoted(line) for line in message.split("\n")] if message else []
        if is_failure and lines and terminal.is_drawable(_STDERR):
            lines = formatting.failure_panel(lines, terminal.size(_STDERR)[0])
        else:
            lines = [f"tflaunch: {line}" for line in lines]
        text = "".join(f"{line}\n" for line in lines)
        self._err.add(Piece(None, text.encode("utf-8")))

    def wait_until_written(self) -> None:
        """Block until the reader has taken everything."""
        for writer in (self._out, self._err):
            writer.wait_until_written()

    def close(self, patience: float | None = None, limit: float | None = None) -> bool:
        """Write everything and remove the view; it can be called again."""
        until = None if limit is None else time.monotonic() + limit
        is_closed = self._out.close(patience, until)
        if self.output_error is not None and not self._is_loss_told:
            self._is_loss_told = True
            if not isinstance(self.output_error, BrokenPipeError):
                self.say(f"warning: output is not shown: stdout: {self.output_error.strerror}; the logs have all of it")
        is_closed = self._err.close(patience, until) and is_closed
        if self._live is not None:
            self._live.let_go()
        return is_closed

    def _write_lines(self, writer: Writer) -> None:
        backlog = writer.backlog
        fold = self._fold if writer is self._out else None
        while not backlog.is_over:
            piece = backlog.take(None if fold is None else fold.patience)
            if fold is not None:
                writer.write(_STDOUT, fold.flush() if piece is not None and piece.task is None else fold.release())
            if piece is not None:
                writer.write(writer.own if piece.task is None else _STDOUT, self._text(piece))
                backlog.note_written()
        if fold is not None:
            writer.write(_STDOUT, fold.flush())

    def _view(self) -> LiveView | None:
        if not terminal.is_drawable(_STDOUT):
            return None
        from tflaunch.tui.live import LiveView  # it draws with rich, whose import takes 20 ms

        terminal.clear_before_stop(self._hide_view)
        return LiveView(lambda: {task: lines.last() for task, lines in self._lines.items()})

    def _hide_view(self) -> None:
        if self._live is not None and self._live.is_drawn:
            self._live.hide()
            self._out.add(Piece(None, b""))
            self._out.wait_until_written(_STOP_PATIENCE)

    def _write_with_view(self, writer: Writer) -> None:
        """Write the pieces collected since the last frame in one go, followed by the view."""
        live, backlog = self._live, writer.backlog
        assert live is not None
        fold = self._fold
        while not backlog.is_over:
            waits = [wait for wait in (live.patience, fold.patience if fold else None) if wait is not None]
            text = self._gather(backlog, min(waits, default=None), live.next_frame)
            writer.write(_STDOUT, live.frame(text + fold.release() if fold else text))
            backlog.note_written()
        writer.write(_STDOUT, live.end(fold.flush() if fold else b""))

    def _gather(self, backlog: Backlog, patience: float | None, until: float) -> bytes:
        """Return the next input, awaited for ``patience`` s, and more until ``until``."""
        texts: list[bytes] = []
        size = 0
        piece = backlog.take(patience)
        while piece is not None:
            texts.append(self._text(piece))
            size += len(texts[-1])
            if size >= _BATCH:
                break
            piece = backlog.take(max(until - time.monotonic(), 0))
        return b"".join(texts)

    def _text(self, piece: Piece) -> bytes:
        if piece.task is None:  # a message follows what tasks have written before
            return (self._fold.flush() if self._fold and self._live and piece.data else b"") + piece.data
        lines = self._lines[piece.task]
        text = lines.feed(piece.data) if piece.data else b""
        if piece.ends_line:
            text += lines.flush()
        if self._fold is not None and text:
            text = self._fold.feed(piece.task, text)
        return text if self._startup is None or self._is_quiet else self._startup.note() + text


def _is_one_stream() -> bool:
    """Whether stdout and stderr go to the same terminal, pipe or file."""
    try:
        return os.path.sameopenfile(_STDOUT, _STDERR)
    except OSError:
        return False


def _quoted(line: str) -> str:
    """Return a line without anything that a terminal would interpret."""
    return printable(re.sub(_COLOUR, "", line.rstrip("\r")).expandtabs(), _LONGEST_LINE)


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
