"""A drill that is due before the agent of its task has greeted."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.job_history import HERE
from support.supervising import supervision
from support.ungreeted_run import UngreetedRun, signals_of
from tflaunch.features.drills.faults import FaultInjector

pytestmark = pytest.mark.unit


@pytest.fixture
def run(tmp_path: Path) -> Iterator[UngreetedRun]:
    """A run whose agent has not greeted."""
    started = UngreetedRun(tmp_path)
    yield started
    started.close()


def test_a_drill_waits_for_the_greeting(run: UngreetedRun, tmp_path: Path) -> None:
    """With a fault, and with its end, which the task would miss for good."""
    said: list[str] = []
    extras = {"drill": "stop worker:0 after 0s for 3s"}
    injector = FaultInjector(
        supervision(run.history.job, tmp_path, run.mailbox, {HERE: run.session}, said.append, extras=extras)
    )
    injector.watch(run.history.job, run.mailbox.now())
    assert (signals_of(run.agent), said) == ([], [])
    run.greet()
    injector.watch(run.history.job, run.mailbox.now())
    assert (signals_of(run.agent), said) == ([signal.SIGSTOP], ["drill: stop worker:0 after 0 s for 3 s"])
    run.session.cut(0)
    run.mailbox.time += 3
    assert [message["kind"] for message in run.later_agent.hears()] == ["hello"]
    run.greet(run.later_agent)
    injector.watch(run.history.job, run.mailbox.now())
    assert signals_of(run.later_agent) == [signal.SIGCONT]
