"""Fold equal lines of several tasks while a run is followed on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tflaunch.store.log_line import Line
from tflaunch.tui.dedupe import Folded, Folder

_WINDOW = 0.5  # seconds for which a line waits for the same of other tasks
_BETWEEN_RELEASES = 0.1  # seconds, at least


class LiveFold:
    """Shows equal lines of several tasks once, with the names of all; each line is at most half a second late."""

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
        """Return what can no longer be folded."""
        return self._shown(self._folder.release(self._clock()))

    def flush(self) -> bytes:
        """Return everything that is held."""
        return self._shown(self._folder.flush())

    def _shown(self, lines: Iterable[Folded]) -> bytes:
        return b"".join(self._prefix_of(folded) + folded.line.text + b"\n" for folded in lines)

    def _prefix_of(self, folded: Folded) -> bytes:
        """Return the prefix of the first task with the names of all, in its columns if there is room."""
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
