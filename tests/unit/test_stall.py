"""A supervisor that was busy reads what has come before it calls an agent silent."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tflaunch.agents.session import Session, Terms
from tflaunch.core.events import Event, HostJoined, LinkLost
from tflaunch.mailbox import Mailbox
from tflaunch.transport.base import LinkError
from tflaunch_worker import wire

pytestmark = pytest.mark.unit


class Clock(Mailbox):
    """A mailbox whose time goes on when it is told to."""

    time = 1000.0

    def now(self) -> float:
        """Return the time."""
        return self.time


class Line:
    """One end of a link, and the way to nowhere else."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def open(self) -> Line:
        """There is no other agent."""
        raise LinkError("no")

    def resume(self) -> Line:
        """Nor can this one be found again."""
        raise LinkError("no")

    def end(self) -> None:
        """Nothing is left."""


class Conversation:
    """A session that has joined, and the agent's end of its link."""

    def __init__(self) -> None:
        ours, self.agent = socket.socketpair()
        self.mailbox = Clock()
        line = Line(ours)
        terms = Terms("run", lease=30.0, grace=1.0, heartbeat=5.0)
        self.session = Session("a", line, terms, self.mailbox, None, lambda _: None)  # type: ignore[arg-type]
        self.session.join_over(line)
        self.says("greeted", streams=[], is_leaving=False, **self.pulse())

    def pulse(self) -> dict[str, float]:
        """What an agent says of its clock and of what it has done."""
        return {"obeyed": 0, "sent": self.mailbox.time, "time": self.mailbox.time}

    def says(self, kind: str, **fields: object) -> None:
        """Let the agent say something."""
        self.agent.sendall(wire.encode({"kind": kind, **fields}))

    def events(self) -> list[Event]:
        """Return what has happened until nothing more does."""
        seen = []
        for _ in range(10):
            event = self.mailbox.take(self.mailbox.now())
            seen += [event] if event is not None else []
        return seen


@pytest.fixture
def talk() -> Iterator[Conversation]:
    """A conversation that has begun."""
    conversation = Conversation()
    assert conversation.events() == [HostJoined("a")]
    yield conversation
    conversation.session.abandon()
    conversation.agent.close()
    conversation.mailbox.close()


def test_words_that_came_meanwhile_are_read_first(talk: Conversation) -> None:
    """The step before took longer than an agent may be silent, and than half of the lease."""
    talk.says("alive", **talk.pulse())
    talk.mailbox.time += 20
    assert talk.events() == []
    assert talk.session.is_linked


def test_an_agent_without_a_word_is_silent(talk: Conversation) -> None:
    """For longer than the heartbeat."""
    talk.mailbox.time += 6
    (lost,) = talk.events()
    assert isinstance(lost, LinkLost)
    assert "nothing was heard for 6.0 s" in lost.reason


def test_an_agent_that_answers_nothing_is_given_up(talk: Conversation) -> None:
    """It says much and hears nothing: what it says is no answer to what it was told."""
    asked = talk.pulse()
    seen: list[Event] = []
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
