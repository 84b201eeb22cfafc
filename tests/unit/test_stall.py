"""Links: a supervisor that was busy reads pending messages before it declares an agent silent."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.job_history import HERE
from support.ungreeted_run import Line, StillMailbox, UngreetedRun, signals_of
from tflaunch.agents.link_state import Terms
from tflaunch.agents.session import Session
from tflaunch.core.events import HostJoined, LinkLost
from tflaunch.mailbox import Mail
from tflaunch_worker import wire

pytestmark = pytest.mark.unit


class Conversation:
    """A connected session, and the agent's end of its link."""

    def __init__(self) -> None:
        ours, self.agent = socket.socketpair()
        self.mailbox = StillMailbox()
        line = Line(ours)
        terms = Terms("run", lease=30.0, grace=1.0, heartbeat=5.0)
        self.session = Session("a", line, terms, self.mailbox, None, lambda _: None)  # type: ignore[arg-type]
        self.session.join(line)
        self.says("greeted", streams=[], addresses=[], is_leaving=False, **self.pulse())

    def pulse(self) -> dict[str, float]:
        return {"obeyed": 0, "sent": self.mailbox.time, "time": self.mailbox.time}

    def says(self, kind: str, **fields: object) -> None:
        self.agent.sendall(wire.encode({"kind": kind, **fields}))

    def events(self) -> list[Mail]:
        seen: list[Mail] = []
        for _ in range(10):
            event = self.mailbox.take(self.mailbox.now())
            seen += [event] if event is not None else []
        return seen


@pytest.fixture
def talk() -> Iterator[Conversation]:
    conversation = Conversation()
    assert conversation.events() == [HostJoined("a")]
    yield conversation
    conversation.session.abandon()
    conversation.agent.close()
    conversation.mailbox.close()


def test_words_that_came_meanwhile_are_read_before_an_agent_is_silent(talk: Conversation) -> None:
    """The previous step took longer than the agent may be silent, and longer than half of the lease."""
    talk.says("alive", **talk.pulse())
    talk.mailbox.time += 20
    assert talk.events() == []
    assert talk.session.is_linked
    talk.mailbox.time += 6
    (lost,) = talk.events()
    assert isinstance(lost, LinkLost)
    assert "no message arrived for 6 s" in lost.reason


def test_an_agent_that_answers_nothing_is_given_up(talk: Conversation) -> None:
    """It sends much and receives nothing: none of its messages acknowledges ours."""
    asked = talk.pulse()
    seen: list[Mail] = []
    for _ in range(12):
        talk.mailbox.time += 2
        talk.says("alive", **asked)
        seen += talk.events()
        if seen:
            break
    (lost,) = seen
    assert isinstance(lost, LinkLost)
    assert "was answered" in lost.reason
    assert 15 <= talk.mailbox.time - 1000 <= 20


# ---- a link that is open before its agent has greeted takes no commands


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
