"""Tasks that wait at a breakpoint, and terminals that debug them over a connection to their agent."""

from __future__ import annotations

import socket
import sys
from typing import Any

from support.agent_client import Agent, LocalAgent, Talk
from tflaunch_worker import linux
from tflaunch_worker.features.debug import breakpoints

PROGRAM = """
def step(number):
    loss = number / 2
    breakpoint()
    return loss
print("up", flush=True)
print("got", step(3), flush=True)
"""


class Terminal:
    """A terminal that debugs a task over a connection to its agent."""

    def __init__(self, talk: Talk, task: str = "worker:0") -> None:
        self._talk = talk
        self._call = talk.begin("attach_debugger", task=task, attempt=0)
        self._read = len(talk.heard)

    def wait_for(self, what: str) -> dict[str, Any]:
        """Return the next message of a kind for this terminal; read on after output."""
        while True:
            message = self._next()
            if message.get("what", "left") == what:
                return message
            if message.get("what") == "output":
                self._tell("read_on")

    def _next(self) -> dict[str, Any]:
        def find() -> dict[str, Any] | None:
            while self._read < len(self._talk.heard):
                self._read += 1
                message = self._talk.heard[self._read - 1]
                if message.get("call") == self._call:
                    return message
            return None

        found: dict[str, Any] = self._talk.wait_until(find)
        return found

    def _tell(self, what: str, **about: Any) -> None:
        self._talk.say("tell_call", call=self._call, what=what, **about)

    def write(self, text: str) -> None:
        """Wait for the prompt, and enter a command."""
        self.wait_for("asks")
        self._tell("line", text=text)

    def leave(self, *, continues: bool) -> None:
        """Leave the debugger."""
        if continues:
            self._tell("continue")
        else:
            self._talk.say("end_call", call=self._call)

    def wait_left(self) -> str:
        """Return why the agent has parted from it."""
        return str(self.wait_for("left")["reason"])


def events(talk: Talk, kind: str) -> list[dict[str, Any]]:
    """Return the events of a kind that have arrived."""
    return [message for message in talk.heard if message["kind"] == kind]


def begin(agent: Agent, program: str = PROGRAM, python: str = sys.executable, **env: Any) -> dict[str, Any]:
    """Start a program; return the event that it waits at a breakpoint."""
    argv = [program] if program.endswith(".py") else ["-c", program]
    agent.talk.start("worker:0", python, *argv, **env)
    return agent.talk.wait_for("breakpoint_reached")


def connect(agent: LocalAgent) -> socket.socket:
    """Connect as a process that stops."""
    caller = socket.socket(socket.AF_UNIX)
    with linux.short_path(str(agent.directory / "tasks/worker-0")) as short:
        caller.connect(f"{short}/{breakpoints.SOCKET_NAME}")
    return caller
