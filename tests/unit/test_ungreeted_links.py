"""A link that is open before its agent has greeted takes no commands: what needs the agent is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.job_history import HERE
from support.ungreeted_run import UngreetedRun, signals_of

pytestmark = pytest.mark.unit


@pytest.fixture
def run(tmp_path: Path) -> Iterator[UngreetedRun]:
    started = UngreetedRun(tmp_path)
    yield started
    started.close()


def test_a_signal_is_refused_instead_of_lost(run: UngreetedRun) -> None:
    """It is sent once the agent takes commands."""
    request = {"tasks": ["worker:0"], "signal": 10}
    (refused,) = run.caller.says("signal", **request)
    assert refused["reason"] == f"{HERE}, where worker:0 runs, cannot be heard"
    run.greet()
    (done,) = run.caller.says("signal", **request)
    assert (done["kind"], done["tasks"]) == ("done", ["worker:0"])
    assert signals_of(run.agent) == [10]
