"""A link that is open before its agent has greeted takes no commands: what needs the agent is refused, or waits."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.job_history import HERE, mirrored
from support.session_links import Line, StillMailbox
from support.supervising import supervision
from tflaunch.agents.session import Session, Terms
from tflaunch.core.events import BreakpointReached
from tflaunch.features.drills.faults import FaultInjector
from tflaunch.mailbox import Mailbox
from tflaunch.runtime.control_requests import Service
from tflaunch.runtime.watchers import Watchers
from tflaunch.store.run_dir import SOCKET_NAME
from tflaunch_worker import wire

pytestmark = pytest.mark.unit


class Peer:
    """A process at the other end of a socket of the supervisor: an agent, or a terminal."""

    def __init__(self, mailbox: Mailbox, end: socket.socket) -> None:
        self._mailbox = mailbox
        self._decoder = wire.Decoder()
        self._end = end
        end.setblocking(False)

    def says(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        """Send a message; return what comes back once the supervisor has served all sockets."""
        self._end.sendall(wire.encode({"kind": kind, **fields}))
        return self.hears()

    def hears(self) -> list[dict[str, Any]]:
        """Return the messages that have come."""
        for _ in range(10):
            self._mailbox.take(self._mailbox.now())
        try:
            return [message for message, _ in self._decoder.feed(self._end.recv(1 << 20))]
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Disconnect."""
        self._end.close()


class Run:
    """The supervisor of two running tasks whose agent is connected, but has not greeted."""

    def __init__(self, directory: Path) -> None:
        self.history = mirrored()
        self.mailbox = StillMailbox()
        pairs = [socket.socketpair() for _ in range(2)]
        line: Any = Line(pairs[0][0], Line(pairs[1][0]))
        nothing: Any = None
        terms = Terms("run", lease=30.0, grace=1.0, heartbeat=5.0)
        self.session = Session(HERE, line, terms, self.mailbox, nothing, lambda work: work())
        sessions = {HERE: self.session}
        self.service = Service(self.history.job, "logs", self.mailbox, sessions)
        self.watchers = Watchers(supervision(self.history.job, directory, self.mailbox, sessions))
        self.service.listen(directory, self.watchers.answer)
        self.session.join_over(line)
        self.agent, self.later_agent = (Peer(self.mailbox, theirs) for _, theirs in pairs)
        caller = socket.socket(socket.AF_UNIX)
        caller.connect(str(directory / SOCKET_NAME))
        self.caller = Peer(self.mailbox, caller)
        assert [message["kind"] for message in self.agent.hears()] == ["hello"]

    def greet(self, agent: Peer | None = None) -> None:
        """Let the agent greet."""
        pulse = {"obeyed": 0, "sent": self.mailbox.now(), "time": self.mailbox.now()}
        (agent or self.agent).says("greeted", streams=[], addresses=[], is_leaving=False, **pulse)
        self.watch()

    def watch(self) -> None:
        """Take a step."""
        self.service.watch(self.history.job, self.mailbox.now())
        self.watchers.watch(self.history.job, self.mailbox.now())

    def close(self) -> None:
        """Close everything."""
        self.caller.close()
        self.session.abandon()
        self.service.close()
        self.agent.close()
        self.later_agent.close()
        self.mailbox.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A run whose agent has not greeted."""
    started = Run(tmp_path)
    yield started
    started.close()


def signals(agent: Peer) -> list[int]:
    """Return the signals that an agent has been told to send."""
    return [message["signal"] for message in agent.hears() if message["kind"] == "signal_task"]


def test_a_signal_is_refused_instead_of_lost(run: Run) -> None:
    """It is sent once the agent takes commands."""
    request = {"tasks": ["worker:0"], "signal": 10}
    (refused,) = run.caller.says("signal", **request)
    assert refused["reason"] == f"{HERE}, where worker:0 runs, cannot be heard"
    run.greet()
    (done,) = run.caller.says("signal", **request)
    assert (done["kind"], done["tasks"]) == ("done", ["worker:0"])
    assert signals(run.agent) == [10]


def test_a_debugger_waits_for_the_greeting(run: Run) -> None:
    """A terminal is attached to a task that waits at a breakpoint as soon as its agent takes commands."""
    run.history.happens(BreakpointReached(HERE, "worker:0", 0, "/code/train.py", 40, "step"))
    run.watch()
    (answer,) = run.caller.says("debug", tasks=["worker:0"])
    assert answer["kind"] == "debugger_waits"
    run.greet()
    assert "attach_debugger" in [message["kind"] for message in run.agent.hears()]


def test_a_drill_waits_for_the_greeting(run: Run, tmp_path: Path) -> None:
    """With a fault, and with its end, which the task would miss for good."""
    said: list[str] = []
    extras = {"drill": "stop worker:0 after 0s for 3s"}
    injector = FaultInjector(
        supervision(run.history.job, tmp_path, run.mailbox, {HERE: run.session}, said.append, extras=extras)
    )
    injector.watch(run.history.job, run.mailbox.now())
    assert (signals(run.agent), said) == ([], [])
    run.greet()
    injector.watch(run.history.job, run.mailbox.now())
    assert (signals(run.agent), said) == ([signal.SIGSTOP], ["drill: stop worker:0 after 0 s for 3 s"])
    run.session.cut(0)
    run.mailbox.time += 3
    assert [message["kind"] for message in run.later_agent.hears()] == ["hello"]
    run.greet(run.later_agent)
    injector.watch(run.history.job, run.mailbox.now())
    assert signals(run.later_agent) == [signal.SIGCONT]
