"""Print log lines, optionally with task names and times, and folded."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence

from tflaunch.store.log_reader import Line
from tflaunch.tui import escapes
from tflaunch.tui.fold import Folder, spans

_FOLD_PATIENCE = 1.0  # seconds for which a line is held to fold others like it


class LogPrinter:
    """Writes lines to stdout; on a terminal, of control sequences only colours."""

    def __init__(self, tasks: Sequence[str], has_times: bool, is_folding: bool) -> None:
        """Print lines of these tasks; those of a single task without its name."""
        self._width = max(map(len, tasks), default=0) if len(tasks) > 1 else 0
        self._has_times = has_times
        self._folder = Folder() if is_folding else None
        self._is_terminal = sys.stdout.isatty()

    @property
    def patience(self) -> float | None:
        """Seconds without new lines after which to call `flush`; None for never."""
        return None if self._folder is None else _FOLD_PATIENCE

    def print(self, lines: Iterable[Line]) -> bool:
        """Print lines given in order of time; return whether there were any."""
        out = sys.stdout.buffer
        has_any = False
        for line in lines:
            has_any = True
            if self._folder is None:
                out.write(self._text(line, ()))
            else:
                for folded in self._folder.feed(line):
                    out.write(self._text(folded.line, folded.others))
        out.flush()
        return has_any

    def flush(self) -> None:
        """Print the lines that are held for folding."""
        if self._folder is not None:
            for folded in self._folder.flush():
                sys.stdout.buffer.write(self._text(folded.line, folded.others))
        sys.stdout.buffer.flush()

    def _text(self, line: Line, others: Sequence[str]) -> bytes:
        moment = f"{local_time(line.time, '%Y-%m-%dT%H:%M:%S')} " if self._has_times else ""
        tasks = spans([line.task, *others]) if others else line.task
        name = f"{tasks:<{self._width}} | " if self._width else ""
        text = escapes.without_commands(line.text) if self._is_terminal else line.text
        return f"{moment}{name}".encode() + text + b"\n"


def local_time(moment: float, pattern: str) -> str:
    """Return local time by a pattern of `time.strftime`, with milliseconds appended."""
    seconds, milliseconds = divmod(round(moment * 1000), 1000)
    return f"{time.strftime(pattern, time.localtime(seconds))}.{milliseconds:03}"
