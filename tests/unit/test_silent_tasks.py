"""An agent reports a task as silent after the limit without output, and that it writes again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tflaunch_worker.agent.stall import StallWatch
from tflaunch_worker.event_loop import Timer

pytestmark = pytest.mark.unit

LIMIT = 10.0


class Clock:
    """The timers of an agent's loop, whose time the test advances."""

    def __init__(self) -> None:
        self.time = 100.0
        self._timers: list[tuple[float, Timer]] = []

    def now(self) -> float:
        """Return the time."""
        return self.time

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Schedule a call."""
        timer = Timer(call)
        self._timers.append((when, timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Make the calls that are due."""
        self.time += seconds
        for when, timer in [one for one in self._timers if one[0] <= self.time]:
            self._timers.remove((when, timer))
            if timer.call is not None:
                timer.call()


class Watched:
    """A task that is watched, and what the supervisor is told."""

    def __init__(self) -> None:
        self.clock, self.told = Clock(), list[str]()
        task = SimpleNamespace(name="worker:0", attempt=0)
        link = SimpleNamespace(say=lambda kind, **_: self.told.append(kind))
        self.watch = StallWatch(self.clock, LIMIT, task, link)  # type: ignore[arg-type]


def test_a_silent_task_is_reported_once_and_again_when_it_writes() -> None:
    """And once more when it falls silent again."""
    watched = Watched()
    watched.clock.advance(LIMIT)
    watched.clock.advance(10 * LIMIT)
    assert watched.told == ["output_stalled"]
    watched.watch.note_output()
    watched.watch.note_output()
    assert watched.told == ["output_stalled", "output_resumed"]
    watched.clock.advance(LIMIT)
    assert watched.told == ["output_stalled", "output_resumed", "output_stalled"]


def test_a_task_that_writes_now_and_then_is_not_silent() -> None:
    """The limit starts again with each output."""
    watched = Watched()
    for _ in range(10):
        watched.clock.advance(0.9 * LIMIT)
        watched.watch.note_output()
    assert watched.told == []


def test_a_task_that_is_gone_is_not_watched() -> None:
    """Its silence means nothing."""
    watched = Watched()
    watched.watch.cancel()
    watched.clock.advance(LIMIT)
    assert watched.told == []
