"""What a drill sees of a training: its steps, files and faults. Pure."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tflaunch.explain.wording import listed

KINDS = ("kill", "term", "host", "chief")
"""What a drill does: KILL or TERM to a task, KILL to all tasks of its host, KILL to the chief."""

SOURCES = ("steps", "bars", "epochs")
"""What tells where a training is: lines and bars of tqdm; bars of Keras; lines that name epochs only."""

BESTS = "bests"
"""The best metrics that an evaluator tells of; each is the ``loss`` of a point."""

WRITTEN, MOVED, READ, REMOVED = "written", "moved", "read", "removed"
"""What happened to a file: its content was changed; it came to its name as a whole; it was read; it is gone."""


class Point(NamedTuple):
    """Where a training was.

    Args:
        time: when it said so, in seconds since the epoch.
        step: counted from the beginning of the training, or of ``epoch`` (see `trail.placed`).
        epoch: from 1 on; None if ``step`` counts from the beginning of the training.
        loss: None if it was not told.
        rate: the learning rate; None if it was not told.
        mean_of: the number of steps of an epoch, if ``loss`` is the mean since the epoch's begin, as in Keras' bar.
        of: the total number of steps that a bar shows; 0 without a bar.
    """

    time: float
    step: float
    epoch: float | None = None
    loss: float | None = None
    rate: float | None = None
    mean_of: int = 0
    of: int = 0


class Life(NamedTuple):
    """The points of one attempt of a task, in the order of time; at least one."""

    attempt: int
    points: tuple[Point, ...]


class FileEvent(NamedTuple):
    """Something that happened to a file, whose path is relative to the directory.

    ``time`` is in seconds since the epoch; ``kind`` is `WRITTEN`, `MOVED`, `READ` or `REMOVED`; ``tasks`` had it open
    when it was written, as far as they could be seen.
    """

    time: float
    kind: str
    path: str
    tasks: frozenset[str] = frozenset()


class Fault(NamedTuple):
    """What is done to a training: a ``kind`` of `KINDS`, to ``tasks``, at a step."""

    kind: str
    tasks: tuple[str, ...]
    step: float

    @property
    def signal(self) -> signal.Signals:
        """The signal that the tasks get."""
        return signal.SIGTERM if self.kind == "term" else signal.SIGKILL

    def __str__(self) -> str:
        verb = "got TERM" if self.kind == "term" else "was killed" if len(self.tasks) == 1 else "were killed"
        return f"{listed(self.tasks)} {verb}"


class Saved(NamedTuple):
    """The newest checkpoint that was there when a training was struck.

    Args:
        path: its file, relative to the directory.
        has_optimizer: whether it names the state of an optimizer.
        iterations: the steps that this optimizer has done; None if it does not say so.
    """

    path: str
    has_optimizer: bool
    iterations: int | None


class Rehearsal(NamedTuple):
    """What was seen of one training.

    Args:
        exit_code: that of the run.
        summary: how the run ended, in words.
        is_stopped: whether it was ended before its end.
        is_late: whether that was because it took too long.
        struck_at: when it was struck, in seconds since the epoch; None if it was not.
        trails: the attempts of each task that trains, by source (see `trail.Trail`).
        per_epoch: steps of an epoch by tasks, where those of each begin again.
        exits: each task, the code with which an attempt of it ended, None for a signal, and when.
        files: what happened to the files of its directory; None if tasks had others, on other hosts.
        saved: the newest checkpoint when it was struck; None if there was none.
    """

    exit_code: int
    summary: str
    is_stopped: bool
    is_late: bool
    struck_at: float | None
    trails: Mapping[str, Mapping[str, tuple[Life, ...]]]
    per_epoch: Mapping[str, float]
    exits: Sequence[tuple[str, int | None, float]]
    files: Sequence[FileEvent] | None
    saved: Saved | None

    def lives(self, task: str, source: str) -> tuple[Life, ...]:
        """Return the attempts of a task, as a source tells of them."""
        return self.trails[task].get(source, ())

    def source(self) -> str:
        """Return the source that tells most of the steps; "" if none does."""
        training = [task for task in self.trails if not is_evaluator(task)]
        return most_detailed({name: [life for task in training for life in self.lives(task, name)] for name in SOURCES})

    def range(self) -> tuple[float, float]:
        """Return the first and the last step; 0 for both if none was seen."""
        source = self.source()
        steps = [point.step for task in self.trails for point in self._points(task, source)]
        return min(steps, default=0.0), max(steps, default=0.0)

    def step_at(self, source: str, time: float) -> float:
        """Return the step that it had reached at a time."""
        points = (point for task in self.trails for point in self._points(task, source))
        return max((point.step for point in points if point.time <= time), default=0.0)

    def was_stopped(self, task: str) -> bool:
        """Return whether a task did not end by itself, but because others had."""
        return {name: code for name, code, _ in self.exits}.get(task, 0) != 0

    def _points(self, task: str, source: str) -> Iterator[Point]:
        return (point for life in self.lives(task, source) for point in life.points)


def most_detailed(lives: Mapping[str, Sequence[Life]]) -> str:
    """Return the source with most points, "" if none has any."""
    counts = {source: sum(len(life.points) for life in of_source) for source, of_source in lives.items()}
    return max(counts, key=lambda source: counts[source]) if any(counts.values()) else ""


def is_evaluator(task: str) -> bool:
    """Return whether a task only evaluates what others train."""
    return task.startswith("evaluator:")
