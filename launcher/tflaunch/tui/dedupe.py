"""Fold a line that several tasks print at the same time into one."""

from __future__ import annotations

import bisect
from collections import deque
from typing import NamedTuple

from tflaunch.store.log_line import Line

_MOST_HELD = 10_000  # limit for lines with an unknown time, which would otherwise be held indefinitely


class Folded(NamedTuple):
    """A line, and the other tasks that printed the same at that time."""

    line: Line
    others: tuple[str, ...] = ()


class _Group:
    """A line, and which other tasks printed it; ``number``: its place among all that are not folded into another."""

    def __init__(self, number: int, line: Line) -> None:
        self.number = number
        self.line = line
        self.others: list[str] = []


class Folder:
    """Folds lines as they arrive. Each task's lines keep their order."""

    def __init__(self, window: float = 1.0) -> None:
        """Fold equal lines of different tasks within ``window`` seconds of the first of them."""
        self._window = window
        self._held: deque[_Group] = deque()
        self._by_text: dict[bytes, list[_Group]] = {}
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
            group = _Group(self._count, line)
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

    def _is_open(self, group: _Group, now: float) -> bool:
        return group.line.time <= now < group.line.time + self._window

    def _pop(self) -> Folded:
        group = self._held.popleft()
        same = self._by_text[group.line.text]
        del same[0]
        if not same:
            del self._by_text[group.line.text]
        return Folded(group.line, tuple(sorted(group.others)))
