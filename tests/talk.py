"""Speaking with a real agent of this machine, as a supervisor does."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tflaunch.hosts.local import LocalWay
from tflaunch_worker import wire

PATIENCE = 20.0


class Talk:
    """A connection to an agent, and all that was heard over it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.heard: list[dict[str, Any]] = []
        self.output: dict[tuple[str, int], bytes] = {}
        self._decoder = wire.Decoder()

    def say(self, kind: str, **fields: object) -> None:
        """Say something to the agent."""
        self.connection.sendall(wire.encode({"kind": kind, **fields}))

    def hello(self, lease: float = 0, grace: float = 5, seen: int = 0) -> dict[str, Any]:
        """Introduce ourselves; return the greeting."""
        terms = {"protocol": wire.PROTOCOL, "run": "test", "lease": lease, "grace": grace, "seen": seen}
        self.say("hello", **terms, clock="test", sent=time.monotonic())
        return self.wait_for("greeted")

    def keep_alive(self) -> None:
        """Renew the lease."""
        self.say("keep_alive", clock="test", sent=time.monotonic())

    def start(self, task: str, *argv: str, attempt: int = 0, port: int = 0, **env: str) -> None:
        """Start a task in the root directory."""
        # The run's name must be nobody else's: an agent knows what a task left behind by it.
        env = {"TFLAUNCH_RUN": f"test-{os.getpid()}", "TFLAUNCH_TASK": task, "TFLAUNCH_ATTEMPT": str(attempt), **env}
        command = {"argv": argv, "env": env, "unset": ["http_proxy"], "workdir": "/", "inherit": True}
        self.say("start_task", task=task, attempt=attempt, port=port, **command)

    def wait_for(self, kind: str, task: str | None = None) -> dict[str, Any]:
        """Return the first message of a kind, about a task, waiting for it."""
        found = self.wait_until(lambda: self._find(kind, task))
        assert isinstance(found, dict)
        return found

    def wait_until(self, condition: Callable[[], Any]) -> Any:
        """Listen until the condition gives something."""
        end = time.monotonic() + PATIENCE
        while not (result := condition()):
            assert select.select([self.connection], [], [], max(end - time.monotonic(), 0))[0], self.heard
            data = self.connection.recv(1 << 20)
            assert data, f"the agent hung up after {self.heard}"
            for message, body in self._decoder.feed(data):
                self.heard.append(message)
                if message["kind"] == "output":
                    key = (message["task"], message["attempt"])
                    assert message["offset"] == len(self.output.get(key, b"")), "output is lost or doubled"
                    self.output[key] = self.output.get(key, b"") + body
        return result

    def _find(self, kind: str, task: str | None) -> dict[str, Any] | None:
        for message in self.heard:
            if message["kind"] == kind and task in (None, message.get("task")):
                return message
        return None

    def acknowledge(self, *streams: tuple[str, int, int, bool], seen: int = 0) -> None:
        """Acknowledge output: (task, attempt, offset, is it complete)."""
        self.say("acknowledge", seen=seen, streams=streams)

    def text(self, task: str, attempt: int = 0) -> str:
        """Return all output of an attempt once it has ended."""
        self.wait_until(
            lambda: [
                m for m in self.heard if m["kind"] == "output_ended" and (m["task"], m["attempt"]) == (task, attempt)
            ]
        )
        return self.output.get((task, attempt), b"").decode()


class LocalAgent:
    """An agent started by the launcher's own link."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "agent"
        self.way = LocalWay(self.directory, "test")
        self.link = self.way.open()
        self.talk = Talk(self.link.socket)
        assert self.way.guard is not None
        self.guard = self.way.guard

    def end(self) -> str:
        """Hang up, wait for the end of everything, and return what the agent's log says."""
        self.link.close()
        self.way.end()
        log = self.directory / "agent.log"
        return log.read_text() if log.exists() else ""

    def pids(self) -> tuple[int, int]:
        """Return the pids of guard and agent."""
        return self.guard.pid, int(self.talk.wait_for("greeted")["pid"])

    def reconnect(self) -> Talk:
        """Connect to the agent's socket, as a supervisor that lost its link does."""
        connection = socket.socket(socket.AF_UNIX)
        directory = os.open(self.directory, os.O_RDONLY)
        connection.connect(f"/proc/self/fd/{directory}/agent.sock")
        os.close(directory)
        return Talk(connection)


def wait_gone(pid: int) -> None:
    """Wait until a process, whosever child it is, has exited."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], PATIENCE)[0], f"process {pid} lives on"
    finally:
        os.close(descriptor)
