"""What an agent watches of its tasks: whether they are silent after the limit without output, and their ports."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from support.still_loop import StillLoop
from tflaunch_worker.agent.network.port_watch import PortWatch
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


def test_a_task_that_writes_now_and_then_or_is_gone_is_not_silent() -> None:
    """The limit counts from its start: while modules are preloaded, there is no task."""
    watched = Watched()
    for _ in range(10):
        watched.clock.advance(0.9 * LIMIT)
        watched.watch.note_output()
    watched.watch.cancel()
    watched.clock.advance(LIMIT)
    assert watched.told == []


def test_a_port_that_opens_late_is_reported_once() -> None:
    loop, opened = StillLoop(), list[tuple[str, int]]()
    watch = PortWatch(loop, lambda task, port: opened.append((task, port)))  # type: ignore[arg-type]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        watch.add("worker:0", port)
        for _ in range(3):
            loop.next()
        assert opened == []
        listener.listen()
        loop.next()
        assert opened == [("worker:0", port)]
    assert loop.timers == []
