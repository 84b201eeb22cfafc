"""An agent reports a task as silent after the limit without output, and that it writes again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from support.still_loop import StillLoop
from tflaunch_worker.agent.stall import StallWatch

pytestmark = pytest.mark.unit

LIMIT = 10.0


class Watched:
    def __init__(self) -> None:
        self.clock, self.told = StillLoop(), list[str]()
        task = SimpleNamespace(name="worker:0", attempt=0)
        link = SimpleNamespace(say=lambda kind, **_: self.told.append(kind))
        self.watch = StallWatch(self.clock, LIMIT, task, link)  # type: ignore[arg-type]
        self.clock.advance(3 * LIMIT)  # its modules are preloaded
        self.watch.begin()


def test_a_silent_task_is_reported_once_and_again_when_it_writes() -> None:
    watched = Watched()
    watched.clock.advance(LIMIT)
    watched.clock.advance(10 * LIMIT)
    assert watched.told == ["output_stalled"]
    watched.watch.note_output()
    watched.watch.note_output()
    assert watched.told == ["output_stalled", "output_resumed"]
    watched.clock.advance(LIMIT)
    assert watched.told == ["output_stalled", "output_resumed", "output_stalled"]


def test_the_import_of_preloaded_modules_is_no_silence_of_the_task() -> None:
    """It has not started yet: the limit counts from then on."""
    watched = Watched()
    watched.clock.advance(0.9 * LIMIT)
    assert watched.told == []
    watched.clock.advance(0.1 * LIMIT)
    assert watched.told == ["output_stalled"]


def test_a_task_that_writes_now_and_then_is_not_silent() -> None:
    watched = Watched()
    for _ in range(10):
        watched.clock.advance(0.9 * LIMIT)
        watched.watch.note_output()
    assert watched.told == []


def test_a_task_that_is_gone_is_not_watched() -> None:
    watched = Watched()
    watched.watch.cancel()
    watched.clock.advance(LIMIT)
    assert watched.told == []
