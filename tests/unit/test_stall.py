"""Links: a supervisor that was busy reads pending messages before it declares an agent silent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.job_history import HERE
from support.ungreeted_run import UngreetedRun, signals_of
from tflaunch.core.events import HostUnreachable, LinkLost
from tflaunch.mailbox import Mail


@pytest.fixture
def run(tmp_path: Path) -> Iterator[UngreetedRun]:
    started = UngreetedRun(tmp_path)
    yield started
    started.close()


def beats(run: UngreetedRun, **acknowledged: float) -> None:
    run.agent.sends("alive", **{"obeyed": 0, "sent": run.mailbox.time, "time": run.mailbox.time, **acknowledged})


def events(run: UngreetedRun) -> list[Mail]:
    """Return what the supervisor is told once it has served all sockets."""
    taken = [run.mailbox.take(run.mailbox.now()) for _ in range(10)]
    return [event for event in taken if event is not None]


def test_words_that_came_meanwhile_are_read_before_an_agent_is_silent(run: UngreetedRun) -> None:
    """The previous step took longer than the agent may be silent, and longer than half of the lease."""
    run.greet()
    beats(run)
    run.mailbox.time += 20
    assert events(run) == []
    assert run.session.is_linked
    run.mailbox.time += 6
    (lost,) = events(run)
    assert isinstance(lost, LinkLost)
    assert "no message arrived for 6 s" in lost.reason


def test_an_agent_that_has_not_greeted_has_the_lease(run: UngreetedRun) -> None:
    run.mailbox.time += 20
    assert events(run) == []
    run.mailbox.time += 11
    assert [type(event) for event in events(run)] == [HostUnreachable]


def test_an_agent_that_answers_nothing_is_given_up(run: UngreetedRun) -> None:
    """It sends much and receives nothing: none of its messages acknowledges ours."""
    run.greet()
    acknowledged, seen = run.mailbox.time, list[Mail]()
    for _ in range(12):
        run.mailbox.time += 2
        beats(run, sent=acknowledged, time=acknowledged)
        seen += events(run)
        if seen:
            break
    (lost,) = seen
    assert isinstance(lost, LinkLost)
    assert "was answered" in lost.reason
    assert 15 <= run.mailbox.time - 1000 <= 20


# ---- a link that is open before its agent has greeted takes no commands


def test_a_signal_is_refused_instead_of_lost(run: UngreetedRun) -> None:
    """It is sent once the agent takes commands."""
    request = {"tasks": ["worker:0"], "signal": 10}
    (refused,) = run.caller.says("signal", **request)
    assert refused["reason"] == f"{HERE}, where worker:0 runs, cannot be heard"
    run.greet()
    (done,) = run.caller.says("signal", **request)
    assert (done["kind"], done["tasks"]) == ("done", ["worker:0"])
    assert signals_of(run.agent) == [10]
