"""The output of tasks, read and encoded once for all pages that show it."""

from __future__ import annotations

import asyncio
import heapq
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from starlette.concurrency import run_in_threadpool

from tflaunch.features.web.feed import encode_event
from tflaunch.store.log_reader import Line, LogReader
from tflaunch.tui.formatting import as_text

_FIRST_LINES = 2000  # of all tasks together
_LEAST_LINES = 5  # of each task
_MOST_LINES = 4000  # that a page can be behind; of more, the last ones are sent
_MOST_BYTES = 4_000_000

ShownLine = tuple[float, str, int, str]
"""Time, task, attempt and text of a line."""


class LogFeed:
    """The output of some tasks, from their last lines on."""

    def __init__(self, reader: LogReader, tasks: Sequence[str]) -> None:
        """Read the last lines; ``reader`` is one of ``tasks``."""
        tail = max(_FIRST_LINES // len(tasks), _LEAST_LINES)
        self._reader = reader
        self._last: dict[str, deque[ShownLine]] = {task: deque(maxlen=tail) for task in tasks}
        self._parts: deque[bytes] = deque()  # events
        self._sizes: deque[int] = deque()  # of the parts, in lines
        self._count = 0  # of all parts that there were
        self._turn: tuple[int, bool] | None = None
        self._reading = asyncio.Lock()
        self._is_cut = False
        self._keep(shown(reader.read(tail=tail + 1)))

    async def update(self, turn: int, is_over: bool) -> None:
        """Read new lines, unless another page did so in this turn of the run's feed."""
        async with self._reading:
            if self._turn != (turn, is_over):
                await run_in_threadpool(self._read, is_over)
                self._turn = (turn, is_over)

    def since(self, seen: int | None) -> tuple[int, list[bytes]]:
        """Return events since the first ``seen`` parts, and the present number of parts.

        A new page, for which ``seen`` is None, gets ``cut``, too, if there are lines before its first ones.
        """
        if seen is None:
            lines = _event(heapq.merge(*self._last.values(), key=lambda line: line[0]))
            return self._count, [lines, *([encode_event("cut", "{}")] if self._is_cut else [])]
        missed = min(self._count - seen, len(self._parts))
        return self._count, list(self._parts)[len(self._parts) - missed :]

    def _read(self, is_over: bool) -> None:
        lines = self._keep(shown(self._reader.new_lines()))
        if is_over:
            lines += self._keep(shown(self._reader.rest()))
        if lines:
            self._sizes.append(len(lines))
            self._parts.append(_event(lines))
            self._count += 1
        while len(self._parts) > 1 and (sum(self._sizes) > _MOST_LINES or sum(map(len, self._parts)) > _MOST_BYTES):
            self._parts.popleft()
            self._sizes.popleft()

    def _keep(self, lines: Iterable[ShownLine]) -> deque[ShownLine]:
        """Keep each task's last lines for later pages; return the last lines of all."""
        kept: deque[ShownLine] = deque(maxlen=_MOST_LINES)
        for line in lines:
            of_task = self._last[line[1]]
            self._is_cut |= len(of_task) == of_task.maxlen
            of_task.append(line)
            kept.append(line)
        return kept


def shown(lines: Iterable[Line]) -> Iterator[ShownLine]:
    """Return lines as pages get them."""
    return ((round(line.time, 3), line.task, line.attempt, as_text(line.text)) for line in lines)


def _event(lines: Iterable[ShownLine]) -> bytes:
    return encode_event("lines", json.dumps(list(lines), separators=(",", ":")))
