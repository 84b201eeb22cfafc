"""A client that talks to a real agent like a supervisor, on this machine or over an SSH link."""

import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from support.processes import parent_of
from support.sshd import Sshd
from support.waiting import PATIENCE, wait_gone
from tflaunch.feature import features, load
from tflaunch.plan.model import HostPlan
from tflaunch.transport.base import Link
from tflaunch.transport.local import LocalConnector
from tflaunch_worker import LOG_NAME, SOCKET_NAME, wire


class Process(Protocol):
    """The required interface of a process."""

    @property
    def pid(self) -> int:
        """The process ID."""


class Talk:
    """A connection to an agent, and all messages received over it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.heard: list[dict[str, Any]] = []
        self.output: dict[tuple[str, int], bytes] = {}
        self._decoder = wire.Decoder()
        self._calls = 0

    def say(self, kind: str, **fields: object) -> None:
        self.connection.sendall(wire.encode({"kind": kind, **fields}))

    def begin(self, kind: str, body: bytes = b"", **fields: object) -> int:
        self._calls += 1
        self.connection.sendall(wire.encode({"kind": kind, "call": self._calls, **fields}, body))
        return self._calls

    def answer(self, call: int) -> dict[str, Any]:
        return self._about(call, "answered")

    def told(self, call: int) -> dict[str, Any]:
        """Wait for a part of the answer to a call, and return the first one."""
        return self._about(call, "told")

    def _about(self, call: int, kind: str) -> dict[str, Any]:
        wanted = (kind, call)
        found = lambda: [one for one in self.heard if (one["kind"], one.get("call")) == wanted]  # noqa: E731
        first: dict[str, Any] = self.wait_until(found)[0]
        return first

    def call(self, kind: str, body: bytes = b"", **fields: object) -> dict[str, Any]:
        return self.answer(self.begin(kind, body, **fields))

    def hello(self, lease: float = 0, grace: float = 5, seen: int = 0) -> dict[str, Any]:
        terms = {"protocol": wire.PROTOCOL, "run": "test", "lease": lease, "grace": grace, "seen": seen}
        # clock: the agent's lease counts from the moment at which a message was sent
        self.say("hello", **terms, clock="test", sent=time.monotonic())
        return self.wait_for("greeted")

    def keep_alive(self) -> None:
        # clock: as in `hello`
        self.say("keep_alive", clock="test", sent=time.monotonic())

    def start(self, task: str, *argv: str, attempt: int = 0, port: int = 0, order: Any = (), **env: str) -> None:
        """Start a task, by default in the root directory; ``order`` has what the order says in addition."""
        # The run's name must be unique: an agent recognizes by it what a task left behind.
        env = {"TFLAUNCH_RUN": f"test-{os.getpid()}", "TFLAUNCH_TASK": task, "TFLAUNCH_ATTEMPT": str(attempt), **env}
        common = {"argv": argv, "env": env, "unset": ["http_proxy"], "workdir": "/", "inherit": True, "port": port}
        self.say("start_task", task=task, attempt=attempt, **{**common, **dict(order)})

    def wait_for(self, kind: str, task: str | None = None, attempt: int | None = None) -> dict[str, Any]:
        def find() -> Iterator[dict[str, Any]]:
            for message in self.heard:
                about = message.get("task"), message.get("attempt")
                if message["kind"] == kind and task in (None, about[0]) and attempt in (None, about[1]):
                    yield message

        found: dict[str, Any] = self.wait_until(lambda: next(find(), None))
        return found

    def wait_until(self, condition: Callable[[], Any]) -> Any:
        """Receive messages until the condition returns a value."""
        while not (result := condition()):
            assert select.select([self.connection], [], [], PATIENCE)[0], self.heard
            data = self.connection.recv(1 << 20)
            assert data, f"the agent hung up after {self.heard}"
            for message, body in self._decoder.feed(data):
                self.heard.append({**message, "body": body} if message["kind"] in ("answered", "told") else message)
                if message["kind"] == "output":
                    task, attempt = message["task"], message["attempt"]
                    assert isinstance(task, str)
                    assert isinstance(attempt, int)
                    key = (task, attempt)
                    assert message["offset"] == len(self.output.get(key, b"")), "output is lost or doubled"
                    self.output[key] = self.output.get(key, b"") + body
        return result

    def acknowledge(self, *streams: tuple[str, int, int, bool], seen: int = 0) -> None:
        """Acknowledge output: (task, attempt, offset, whether it is complete)."""
        self.say("acknowledge", seen=seen, streams=streams)

    def text(self, task: str, attempt: int = 0) -> str:
        ended = {"kind": "output_ended", "task": task, "attempt": attempt}
        self.wait_until(lambda: [message for message in self.heard if ended.items() <= message.items()])
        return self.output.get((task, attempt), b"").decode()


class Agent(Protocol):
    """A real agent, over any link."""

    directory: Path
    """The agent's directory, on its host."""
    talk: Talk
    """The first connection."""
    link: Link
    """The underlying link; a supervisor closes it to disconnect."""
    guard: Process

    def end(self) -> str:
        """Disconnect, wait until every process has ended, and return the agent's log."""

    def pids(self) -> tuple[int, int]:
        """Return the pids of guard and agent; requires a greeting."""

    def reconnect(self) -> Talk:
        """Reconnect to the agent, as a supervisor does after losing its link."""


class LocalAgent:
    """An agent started by the launcher's own link."""

    def __init__(self, directory: Path, run: str = "test") -> None:
        self.directory = directory / f"home/runs/{run}/agents/here"
        self.connector = LocalConnector(self.directory, run)
        self.link: Link = self.connector.open()
        self.talk = Talk(self.link.socket)
        assert self.connector.guard is not None
        self.guard: Process = self.connector.guard

    def end(self) -> str:
        self.link.close()
        self.connector.end()
        return _log(self.directory)

    def pids(self) -> tuple[int, int]:
        return self.guard.pid, int(self.talk.wait_for("greeted")["pid"])

    def reconnect(self) -> Talk:
        """Connect to the agent's socket: the launcher never restores a lost link on this machine."""
        connection = socket.socket(socket.AF_UNIX)
        directory = os.open(self.directory, os.O_RDONLY)
        connection.connect(f"/proc/self/fd/{directory}/{SOCKET_NAME}")
        os.close(directory)
        return Talk(connection)


class SshAgent:
    """An agent on a host that is reached over SSH. HOME must configure SSH for the host's name."""

    def __init__(self, host: Sshd) -> None:
        self.directory = host.home / ".local/state/tflaunch/runs/test/agents" / host.name
        self.connector = load(features()["ssh"].connectors["ssh"])("test", PATIENCE).connector_to(
            HostPlan(host.name, is_local=False), None
        )
        self.links: list[Link] = [self.connector.open()]
        self.link = self.links[0]
        self.talk = Talk(self.link.socket)
        self.guard: Process = _guard_on(host)

    def end(self) -> str:
        for link in self.links:
            link.close()
        wait_gone(self.guard.pid)
        return _log(self.directory)

    def pids(self) -> tuple[int, int]:
        return self.guard.pid, int(self.talk.wait_for("greeted")["pid"])

    def reconnect(self) -> Talk:
        self.links.append(self.connector.resume())
        return Talk(self.links[-1].socket)


def _guard_on(host: Sshd) -> Process:
    """Return the only guard there: it and its agent belong to a session whose leader has exited."""
    started = {process.pid: process for process in host.survivors()}
    daemons = {pid: process for pid, process in started.items() if _session(pid) not in started}
    (guard,) = [process for process in daemons.values() if parent_of(process) not in (None, *daemons)]
    return guard


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return pid  # it has exited by now; a session leader cannot be the guard


def _log(directory: Path) -> str:
    log = directory / LOG_NAME
    return log.read_text() if log.exists() else ""
