"""Fold lines that many tasks write at once, while a run is followed on a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from tflaunch.store.log_line import Line
from tflaunch.tui.dedupe import Folded, Folder

FEWEST_TASKS = 3
"""Among fewer tasks nothing is folded: a line of the other one is as short as the note on it."""
_BETWEEN_RELEASES = 0.1  # seconds, at least


class LiveFold:
    """Shows the first of equal lines at once, and after a second which other tasks have written it, too."""

    def __init__(self, prefixes: Mapping[str, bytes], clock: Callable[[], float]) -> None:
        """Fold lines of these tasks, which begin with ``prefixes``."""
        self._prefixes = prefixes
        self._clock = clock
        self._folder = Folder(is_live=True)

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
        parts: list[bytes] = []
        blocks = itertools.groupby(enumerate(lines), key=_block)
        for (task, others, _), block in blocks:
            texts = [folded.line.text for _, folded in block]
            if len(others) * len(texts) < 2:
                parts += [self._prefixes[others[0] if others else task] + text for text in texts]
            elif len(texts) == 1:
                parts.append(b"[%s] %s (%d times)" % (spans(others).encode(), texts[0], len(others)))
            else:
                about = f"[{spans(others)}] the {len(texts)} lines of {task} that end with: "
                parts.append(about.encode() + next((text for text in reversed(texts) if text.strip()), b""))
        return b"".join(part + b"\n" for part in parts)


def _block(item: tuple[int, Folded]) -> tuple[str, tuple[str, ...], int]:
    """Return what is the same for lines that follow each other, and that the same tasks have written."""
    place, folded = item
    return folded.line.task, folded.others, folded.number - place


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
