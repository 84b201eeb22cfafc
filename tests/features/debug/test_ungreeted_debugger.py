"""A debugger that is asked for before the agent of its task has greeted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.job_history import HERE
from support.ungreeted_run import UngreetedRun
from tflaunch.core.events import BreakpointReached

pytestmark = pytest.mark.unit


@pytest.fixture
def run(tmp_path: Path) -> Iterator[UngreetedRun]:
    """A run whose agent has not greeted."""
    started = UngreetedRun(tmp_path)
    yield started
    started.close()


def test_a_debugger_waits_for_the_greeting(run: UngreetedRun) -> None:
    """A terminal is attached to a task that waits at a breakpoint as soon as its agent takes commands."""
    run.history.happens(BreakpointReached(HERE, "worker:0", 0, "/code/train.py", 40, "step"))
    run.watch()
    (answer,) = run.caller.says("debug", tasks=["worker:0"])
    assert answer["kind"] == "debugger_waits"
    run.greet()
    assert "attach_debugger" in [message["kind"] for message in run.agent.hears()]
