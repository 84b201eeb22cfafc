"""Fold a line that many tasks print at the same time into one."""

from __future__ import annotations

import bisect
from collections import Counter, deque

from tflaunch.store.log_line import Line
from tflaunch_worker.named_tuple import NamedTuple

_MOMENT = 0.25  # seconds within which lines count as written together
_MOST_HELD = 10_000  # limit for lines with an unknown time, which would otherwise be held indefinitely


class Folded(NamedTuple):
    """A line, and the other tasks that printed the same at that time.

    ``number``: the place of the line among all that are not folded into another one.
    """

    line: Line
    others: tuple[str, ...] = ()
    number: int = 0


class _Group:
    """A line, and which other tasks printed it."""

    def __init__(self, number: int, line: Line, is_shown: bool) -> None:
        self.number = number
        self.line = line
        self.is_shown = is_shown
        self.others: list[str] = []


class Folder:
    """Folds lines as they arrive. Each task's lines keep their order."""

    def __init__(self, window: float = 1.0, is_live: bool = False) -> None:
        """Fold equal lines of different tasks within ``window`` seconds of the first of them.

        If it ``is_live``, the first is returned at once, unless an earlier line of its task is held.
        """
        self._window = window
        self._is_live = is_live
        self._waiting: Counter[str] = Counter()  # lines of each task that were not returned yet
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
            group = _Group(self._count, line, is_shown=self._is_live and not self._waiting[line.task])
            over += [Folded(line)] if group.is_shown else []
            self._count += 1
            self._held.append(group)
            same.append(group)
        self._last[line.task] = group.number
        self._waiting[line.task] += not (group.is_shown and group.line is line)
        return over

    def flush(self) -> list[Folded]:
        """Return all held lines, at the end or during a pause."""
        return [folded for _ in range(len(self._held)) for folded in self._pop()]

    @property
    def due(self) -> float | None:
        """When to call `release`, None for never."""
        return self._held[0].line.time + self._window if any(self._waiting.values()) else None

    def release(self, now: float) -> list[Folded]:
        """Return the lines that can no longer be folded, and if it is live, those that belong to them."""
        over: list[Folded] = []
        while self._held and (len(self._held) >= _MOST_HELD or not self._is_open(self._held[0], now)):
            first = self._held[0]
            over += self._pop()
            while self._is_live and first.others and self._held and _is_same_block(first, self._held[0]):
                over += self._pop()
        return over

    def _is_open(self, group: _Group, now: float) -> bool:
        return group.line.time <= now < group.line.time + self._window

    def _pop(self) -> list[Folded]:
        group = self._held.popleft()
        self._waiting.subtract(group.others if group.is_shown else [group.line.task, *group.others])
        same = self._by_text[group.line.text]
        del same[0]
        if not same:
            del self._by_text[group.line.text]
        folded = Folded(group.line, tuple(sorted(group.others)), group.number)
        if not self._is_live:
            return [folded]
        line = [] if group.is_shown else [Folded(group.line)]
        return [*line, folded] if group.others else line


def _is_same_block(first: _Group, next_one: _Group) -> bool:
    """Whether the same tasks have written two lines within a moment."""
    is_soon = next_one.line.time <= first.line.time + _MOMENT
    return is_soon and (first.line.task, {*first.others}) == (next_one.line.task, {*next_one.others})
