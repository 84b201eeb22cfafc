"""Print lines of logs, and fold a line that several tasks print at the same time."""

import bisect
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from tflaunch.store.log_reader import Line
from tflaunch.tui import formatting

_MOST_HELD = 10_000  # limit for lines with an unknown time, which would otherwise be held indefinitely
_WINDOW = 0.5  # seconds for which a line of a run that is followed waits for the same of other tasks
_FOLD_PATIENCE = 1.0  # seconds for which a line is held to fold others like it
_BETWEEN_RELEASES = 0.1  # seconds, at least


class Folded:
    """A line, how many came before, and other tasks that printed the same then."""

    def __init__(self, number: int, line: Line) -> None:
        self.number = number
        self.line = line
        self.others: list[str] = []


class Folder:
    """Folds lines as they arrive. Each task's lines keep their order."""

    def __init__(self, window: float = 1.0) -> None:
        """Fold equal lines of different tasks within ``window`` seconds of the first."""
        self._window = window
        self._held: deque[Folded] = deque()
        self._by_text: dict[bytes, list[Folded]] = {}
        self._last: dict[str, int] = {}
        self._count = 0

    def feed(self, line: Line) -> list[Folded]:
        """Take the next line; return the lines that can no longer be folded."""
        over = self.release(line.time)
        last = self._last.get(line.task, -1)
        same = self._by_text.setdefault(line.text, [])
        # After the group of the task's last line: otherwise its lines would swap, or one would count twice.
        place = bisect.bisect_right(same, last, key=lambda group: group.number)
        if place < len(same):
            group = same[place]
            group.others.append(line.task)
        else:
            group = Folded(self._count, line)
            self._count += 1
            self._held.append(group)
            same.append(group)
        self._last[line.task] = group.number
        return over

    def flush(self) -> list[Folded]:
        """Return all held lines, at the end or during a pause."""
        return [self._pop() for _ in range(len(self._held))]

    @property
    def due(self) -> float | None:
        """When to call `release`, None for never."""
        return self._held[0].line.time + self._window if self._held else None

    def release(self, now: float) -> list[Folded]:
        """Return the lines that can no longer be folded."""
        over: list[Folded] = []
        while self._held and (len(self._held) >= _MOST_HELD or not self._is_open(self._held[0], now)):
            over.append(self._pop())
        return over

    def _is_open(self, group: Folded, now: float) -> bool:
        return group.line.time <= now < group.line.time + self._window

    def _pop(self) -> Folded:
        group = self._held.popleft()
        same = self._by_text[group.line.text]
        del same[0]
        if not same:
            del self._by_text[group.line.text]
        return group


class LiveFold:
    """Shows equal lines of several tasks once, at most half a second late."""

    def __init__(self, prefixes: Mapping[str, bytes], clock: Callable[[], float]) -> None:
        """Fold lines of these tasks, which begin with ``prefixes``."""
        self._prefixes = prefixes
        self._clock = clock
        self._folder = Folder(_WINDOW)

    @property
    def patience(self) -> float | None:
        """Seconds until `release` must be called; None if nothing is held."""
        due = self._folder.due
        return None if due is None else max(due - self._clock(), _BETWEEN_RELEASES)

    def feed(self, task: str, text: bytes) -> bytes:
        """Take whole lines of a task, with its prefix; return what is shown now."""
        now, width = self._clock(), len(self._prefixes[task])
        lines = (Line(now, task, 0, line[width:]) for line in text.split(b"\n")[:-1])
        return self._shown(folded for line in lines for folded in self._folder.feed(line))

    def release(self) -> bytes:
        """Return the lines that can no longer be folded."""
        return self._shown(self._folder.release(self._clock()))

    def flush(self) -> bytes:
        """Return everything that is held."""
        return self._shown(self._folder.flush())

    def _shown(self, lines: Iterable[Folded]) -> bytes:
        return b"".join(self._prefix_of(folded) + folded.line.text + b"\n" for folded in lines)

    def _prefix_of(self, folded: Folded) -> bytes:
        """Return the first task's prefix with the names of all, in place if they fit."""
        task = folded.line.task
        names = spans([task, *folded.others]).encode()
        padded = task.encode().ljust(len(names))
        prefix = self._prefixes[task]
        return prefix.replace(padded if padded in prefix else task.encode(), names, 1)


def spans(tasks: Iterable[str]) -> str:
    """Return the names of tasks as users select them: ``ps:0 worker:1-7``."""
    found: list[tuple[str, list[int]]] = []
    for role, index in sorted((role, int(index or -1)) for role, _, index in (task.partition(":") for task in tasks)):
        if found and found[-1][0] == role and found[-1][1][-1] == index - 1:
            found[-1][1].append(index)
        else:
            found.append((role, [index]))
    return " ".join(_span(role, indices[0], indices[-1]) for role, indices in found)


def _span(role: str, first: int, last: int) -> str:
    if first < 0:  # a sidecar
        return role
    return f"{role}:{first}" if first == last else f"{role}:{first}-{last}"


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
        has_any = False
        for line in lines:
            has_any = True
            self._write([Folded(0, line)] if self._folder is None else self._folder.feed(line))
        sys.stdout.buffer.flush()
        return has_any

    def flush(self) -> None:
        """Print the lines that are held for folding."""
        self._write([] if self._folder is None else self._folder.flush())
        sys.stdout.buffer.flush()

    def _write(self, lines: Iterable[Folded]) -> None:
        for folded in lines:
            sys.stdout.buffer.write(self._text(folded.line, folded.others))

    def _text(self, line: Line, others: Sequence[str]) -> bytes:
        moment = f"{local_time(line.time, '%Y-%m-%dT%H:%M:%S')} " if self._has_times else ""
        tasks = spans([line.task, *others]) if others else line.task
        name = f"{tasks:<{self._width}} | " if self._width else ""
        text = formatting.without_commands(line.text) if self._is_terminal else line.text
        return f"{moment}{name}".encode() + text + b"\n"


def local_time(moment: float, pattern: str) -> str:
    """Return local time by a pattern of `time.strftime`, with milliseconds appended."""
    seconds, milliseconds = divmod(round(moment * 1000), 1000)
    return f"{time.strftime(pattern, time.localtime(seconds))}.{milliseconds:03}"
