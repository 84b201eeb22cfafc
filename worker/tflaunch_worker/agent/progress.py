"""Progress: reports that a task writes to its own pipe, without printing anything.

TFLAUNCH_PROGRESS holds the path of the pipe. Each line is a JSON object in which any field may be omitted::

    {"step": 120, "epoch": 2, "epochs": 10, "steps_per_epoch": 100, "metrics": {"loss": 0.31}}

``echo '{"step": 5}' > "$TFLAUNCH_PROGRESS"`` is enough. ``step`` counts from the beginning of the training, ``epoch``
is the current epoch, starting with 1. A field keeps its value until a later line changes it; a metric set to null is
removed. Ignored are fields with other names or types, lines longer than 4096 bytes (longer ones cannot be written
atomically) and lines that are not JSON objects; still, each of them shows that the task is alive.

The agent holds both ends, so a writer never gets a broken pipe, and reads data as soon as it arrives. A task opens the
agent's own end in /proc: that needs no file and disappears with the agent, whereas a named pipe would be left without
a reader.
"""

from __future__ import annotations

import json
import os
from collections import deque
from typing import Callable

from tflaunch_worker.event_loop import Loop
from tflaunch_worker.readable import printable

_READ = 64 * 1024


class Progress:
    """The progress pipe of one attempt; ``came`` is called whenever data arrives."""

    def __init__(self, loop: Loop, came: Callable[[], None]) -> None:
        """Create the pipe; raise `OSError` if that is not possible."""
        self._pipe, self._end = os.pipe()
        self.path = f"/proc/{os.getpid()}/fd/{self._end}"
        self._loop = loop
        self._came = came
        self._stats = ProgressStats()
        self._partial = b""
        os.set_blocking(self._pipe, False)
        loop.watch(self._pipe, self.read_rest)

    def read_rest(self) -> None:
        """Read everything that has been written and not read yet."""
        try:
            data = os.read(self._pipe, _READ)
        except BlockingIOError:
            return
        *lines, partial = (self._partial + data).split(b"\n")
        self._partial = partial[: LONGEST + 1]  # a line that is too long remains too long
        for line in lines:
            self._stats.take(line, self._loop.now())
        self._came()

    def known(self) -> dict[str, object]:
        """Return the progress (see `ProgressStats.known`), empty if none was reported."""
        return self._stats.known(self._loop.now())

    def close(self) -> None:
        """Close the pipe: the attempt is over."""
        self._loop.forget(self._pipe)
        os.close(self._pipe)
        os.close(self._end)


LONGEST = 4096
"""Maximum number of bytes of a line: Linux's PIPE_BUF, so that lines of two writers are never mixed."""

MOST_METRICS = 20
LONGEST_NAME = 64  # characters

_COUNTS = ("step", "epoch", "epochs", "steps_per_epoch")
_WINDOW = 10.0  # seconds over which the speed is averaged
_APART = 0.25  # minimum seconds between two samples for that
LARGEST = 2.0**63
"""No metric or count is beyond this."""


class ProgressStats:
    """The latest values reported by one attempt."""

    def __init__(self) -> None:
        self._counts: dict[str, float] = {}
        self._metrics: dict[str, float] = {}
        self._came_at: float | None = None
        self._stepped_at = 0.0
        self._moments: deque[tuple[float, float]] = deque()

    def take(self, line: bytes, now: float) -> None:
        """Add a line that arrived at ``now`` (seconds)."""
        try:
            said = json.loads(line) if len(line) <= LONGEST else None
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            return
        self._came_at = now
        for name in _COUNTS:
            value = _number(said.get(name))
            if value is not None and value >= 0:
                if name == "step":
                    self._step(value, now)
                self._counts[name] = value
        metrics = said.get("metrics")
        for name, value in metrics.items() if isinstance(metrics, dict) else ():
            self._take_metric(printable(name, LONGEST_NAME), value)

    def known(self, now: float) -> dict[str, object]:
        """Return the progress known at ``now``.

        It has step, epoch, epochs, steps_per_epoch, steps_per_second, metrics (name to number) and age, the seconds
        since the last line; it is empty if no line ever arrived.
        """
        if self._came_at is None:
            return {}
        known: dict[str, object] = {**self._counts, "metrics": dict(self._metrics), "age": now - self._came_at}
        speed = self._speed(now)
        if speed is not None:
            known["steps_per_second"] = speed
        return known

    def _take_metric(self, name: str, value: object) -> None:
        number = _number(value)
        if value is None:
            self._metrics.pop(name, None)
        elif number is not None and (name in self._metrics or len(self._metrics) < MOST_METRICS):
            self._metrics[name] = number

    def _step(self, step: float, now: float) -> None:
        if step < self._counts.get("step", step):
            self._moments.clear()  # an earlier state was restored
        self._stepped_at = now
        if not self._moments or now - self._moments[-1][0] >= _APART:
            self._moments.append((now, step))
        while len(self._moments) > 1 and self._moments[1][0] <= now - _WINDOW:
            self._moments.popleft()

    def _speed(self, now: float) -> float | None:
        """Return steps per second over about ten seconds; it falls while no step arrives."""
        if not self._moments or self._stepped_at - self._moments[0][0] < _APART:
            return None
        began_at, first = self._moments[0]
        seconds = max(self._stepped_at - began_at, now - self._stepped_at)
        return (self._counts["step"] - first) / seconds


def _number(value: object) -> float | None:
    """Return a finite number, or else None; Python treats true as a number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST < value < LARGEST:
        return value
    return None
