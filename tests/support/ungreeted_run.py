"""Parts of a supervisor for tests: its clock, what its watchers get, and one whose agent has not greeted."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support.job_history import HERE, mirrored
from tflaunch.agents.link_state import Terms
from tflaunch.agents.session import Session
from tflaunch.core.job_state import Job
from tflaunch.mailbox import Mailbox
from tflaunch.runtime.control_requests import Service
from tflaunch.runtime.run_config import RunConfig
from tflaunch.runtime.watchers import Supervision, Watchers
from tflaunch.store.run_dir import SOCKET_NAME, RunDirectory
from tflaunch.transport.base import LinkError
from tflaunch_worker import wire


class StillMailbox(Mailbox):
    """A mailbox whose clock the test advances."""

    time = 1000.0

    def now(self) -> float:
        return self.time


class Line:
    """The supervisor's end of a link, and its connector: there is no other agent, and at most one more link."""

    def __init__(self, end: socket.socket, following: Line | None = None) -> None:
        self.socket = end
        self._following = following
        self._is_started = False

    def close(self) -> None:
        self.socket.close()

    def open(self) -> Line:
        """Return this link once; raise after that: no other agent exists."""
        if self._is_started:
            raise LinkError("no")
        self._is_started = True
        return self

    def resume(self) -> Line:
        """Return the next link; raise if this agent cannot be found again."""
        if self._following is None:
            raise LinkError("no")
        return self._following

    def end(self) -> None:
        """Do nothing."""


def supervision(
    job: Job,
    directory: Path,
    mailbox: Any = None,
    sessions: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda _: None,
    journal: Any = None,
    **config: Any,
) -> Supervision:
    """Return the supervision of a job whose run has this directory; nobody asks for its status, or measures."""
    settings = RunConfig(RunDirectory.existing(directory, directory / "logs"), None, say, **config)

    def nobody(*_: object) -> Any:
        raise AssertionError("a watcher has asked for the status")

    return Supervision(job, settings, journal, mailbox, sessions or {}, say, nobody, lambda _: None)


class Peer:
    """A process at the other end of a socket of the supervisor: an agent, or a terminal."""

    def __init__(self, mailbox: Mailbox, end: socket.socket) -> None:
        self._mailbox = mailbox
        self._decoder = wire.Decoder()
        self._end = end
        end.setblocking(False)

    def says(self, kind: str, body: bytes = b"", /, **fields: Any) -> list[dict[str, Any]]:
        """Send a message; return what comes back once the supervisor has served all sockets."""
        self.sends(kind, body, **fields)
        return self.hears()

    def sends(self, kind: str, body: bytes = b"", /, **fields: Any) -> None:
        self._end.sendall(wire.encode({"kind": kind, **fields}, body))

    def hears(self) -> list[dict[str, Any]]:
        for _ in range(10):
            self._mailbox.take(self._mailbox.now())
        try:
            return [{**message, "body": body} for message, body in self._decoder.feed(self._end.recv(1 << 20))]
        except BlockingIOError:
            return []

    def close(self) -> None:
        self._end.close()


class UngreetedRun:
    """The supervisor of two running tasks whose agent is connected, but has not greeted."""

    def __init__(self, directory: Path) -> None:
        self.history = mirrored()
        self.mailbox = StillMailbox()
        pairs = [socket.socketpair() for _ in range(2)]
        line: Any = Line(pairs[0][0], Line(pairs[1][0]))
        nothing: Any = None
        terms = Terms("run", lease=30.0, grace=1.0, heartbeat=5.0)
        self.session = Session(HERE, line, terms, self.mailbox, nothing, nothing, lambda work: work())
        sessions = {HERE: self.session}
        self.service = Service(self.history.job, "logs", self.mailbox, sessions)
        self.watchers = Watchers(supervision(self.history.job, directory, self.mailbox, sessions))
        self.service.listen(directory, self.watchers.answer)
        self.session.join()
        self.agent, self.later_agent = (Peer(self.mailbox, theirs) for _, theirs in pairs)
        caller = socket.socket(socket.AF_UNIX)
        caller.connect(str(directory / SOCKET_NAME))
        self.caller = Peer(self.mailbox, caller)
        assert [message["kind"] for message in self.agent.hears()] == ["hello"]

    def greet(self, agent: Peer | None = None) -> None:
        pulse = {"obeyed": 0, "sent": self.mailbox.now(), "time": self.mailbox.now()}
        (agent or self.agent).says("greeted", streams=[], addresses=[], is_leaving=False, **pulse)
        self.watch()

    def watch(self) -> None:
        """Take a step."""
        self.service.watch(self.history.job, self.mailbox.now())
        self.watchers.watch(self.history.job, self.mailbox.now())

    def close(self) -> None:
        self.caller.close()
        self.session.abandon()
        self.service.close()
        self.agent.close()
        self.later_agent.close()
        self.mailbox.close()


def signals_of(agent: Peer) -> list[int]:
    """Return the signals that an agent has been told to send."""
    return [message["signal"] for message in agent.hears() if message["kind"] == "signal_task"]
