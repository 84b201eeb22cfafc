"""Real agents, and programs that wait at a breakpoint."""

import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.agent_client import Agent, LocalAgent, Talk
from support.waiting import PATIENCE
from tflaunch_worker import linux, wire
from tflaunch_worker.features.debug import breakpoints

from .test_evidence import pythons

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

    def wait_left(self) -> str:
        """Return why the agent has parted from it."""
        return str(self.wait_for("left")["reason"])


def events(talk: Talk, kind: str) -> list[dict[str, Any]]:
    return [message for message in talk.heard if message["kind"] == kind]


def begin(agent: Agent, program: str = PROGRAM, python: str = sys.executable, **env: Any) -> dict[str, Any]:
    """Start a program; return the event that it waits at a breakpoint."""
    argv = [program] if program.endswith(".py") else ["-c", program]
    agent.talk.start("worker:0", python, *argv, **env)
    return agent.talk.wait_for("breakpoint_reached")


def connect(agent: LocalAgent) -> socket.socket:
    """Connect as a process that stops."""
    return linux.connect_to(str(agent.directory / "tasks/worker-0"), breakpoints.SOCKET_NAME)


def is_waiting(talk: Talk) -> bool:
    """Return whether the task waits, as far as told.

    Where a step takes a second, as on a busy machine, the task has left the breakpoint and reached another one.
    """
    told = [message["kind"] for message in talk.heard if message["kind"].startswith("breakpoint_")]
    return told[-1:] == ["breakpoint_reached"]


@pytest.mark.parametrize("python", pythons())
def test_every_python_can_be_debugged(local: LocalAgent, python: str, tmp_path: Path) -> None:
    """Steps, breakpoints of its own, `up`, statements, long output, and the end of all that."""
    file = tmp_path / "train.py"
    file.write_text(PROGRAM + "for number in range(3):\n    step(number)\n")
    line = len(file.read_text().splitlines())
    begin(local, str(file), python)
    steps = ["n", "w", "p 'x' * 100000", "u", "p __name__", "d", "p loss", "help p", f"b {line}", "c", "cl 1", "c"]
    for commands in (steps, ["c"], ["q"]):
        local.talk.wait_until(lambda: is_waiting(local.talk))
        terminal = Terminal(local.talk)
        for command in commands:
            terminal.write(command)
        assert terminal.wait_left() == ("quit" if commands == ["q"] else "continued")
    left = local.talk.wait_until(lambda: [event for event in events(local.talk, "breakpoint_left") if event["is_quit"]])
    assert len(left) == 1
    assert "task_exited" not in [message["kind"] for message in local.talk.heard]
    local.talk.say("stop_task", task="worker:0", attempt=0, grace=5)
    assert local.talk.wait_for("task_exited")["signal"] == signal.SIGTERM


THREADS = """
import os, subprocess, sys, threading
def step(name):
    breakpoint()
    os.write(1, f"{name}\\n".encode())  # print() writes a line and its end apart
def stop_in_child():
    if os.fork() == 0:
        step("child")
        os._exit(0)
    os.wait()
threads = [threading.Thread(target=step, args=(f"thread {number}",)) for number in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
stop_in_child()
subprocess.run([sys.executable, "-c", "breakpoint(); print('program')"])
"""


def has_reached(talk: Talk, count: int) -> bool:
    return len(events(talk, "breakpoint_reached")) == count


def test_threads_and_children_wait_one_after_the_other(local: LocalAgent) -> None:
    """Each gets its own prompt."""
    begin(local, THREADS)
    for number in range(5):
        local.talk.wait_until(partial(has_reached, local.talk, number + 1))
        terminal = Terminal(local.talk)
        terminal.write("c")
        assert terminal.wait_left() == "continued"
    lines = local.talk.text("worker:0").splitlines()
    assert sorted(lines[:3]) == ["thread 0", "thread 1", "thread 2"]
    assert lines[3:] == ["child", "program"]
    assert local.talk.wait_for("task_exited")["code"] == 0


SAVES = """
import signal
is_stopped = []
signal.signal(signal.SIGTERM, lambda *_: is_stopped.append(True))
breakpoint()
while not is_stopped:
    signal.pause()
print("saved", flush=True)
"""


def test_a_task_that_is_stopped_can_still_save(local: LocalAgent) -> None:
    """Its terminal hears that; a process without a handler ends at once."""
    begin(local, SAVES)
    terminal = Terminal(local.talk)
    terminal.wait_for("asks")
    local.talk.say("stop_task", task="worker:0", attempt=0, grace=PATIENCE)
    assert terminal.wait_left() == "stopped"
    assert local.talk.text("worker:0") == "saved\n"
    assert local.talk.wait_for("task_exited")["code"] == 0


def test_a_killed_process_is_not_waited_for(local: LocalAgent) -> None:
    """Its terminal hears that."""
    begin(local)
    terminal = Terminal(local.talk)
    terminal.wait_for("asks")
    psutil.Process(local.talk.wait_for("task_started")["pid"]).kill()
    assert terminal.wait_left() == "ended"
    assert local.talk.wait_for("breakpoint_left")["is_quit"] is False
    assert local.talk.wait_for("task_exited")["signal"] == signal.SIGKILL


def test_any_bytes_at_the_socket_are_survived(local: LocalAgent) -> None:
    """Nothing but a well-formed message is reported, and the next process is served."""
    local.talk.start("worker:0", "sleep", "3600")
    local.talk.wait_for("task_started")
    stopped = {"kind": "stopped", "file": "a.py", "line": 1, "function": "f"}
    for data in (
        b"",
        b"\xff" * 100,
        wire.encode({"kind": "stopped"}),
        wire.encode({**stopped, "line": -1}),
        wire.encode({"kind": "output", "text": 3}),
        wire.encode({"kind": "unknown"}),
    ):
        with connect(local) as caller:
            caller.sendall(data)
    with connect(local) as caller:
        caller.sendall(wire.encode(stopped))
        assert local.talk.wait_for("breakpoint_reached")["file"] == "a.py"
        assert len(events(local.talk, "breakpoint_left")) == 0
    local.talk.wait_for("breakpoint_left")
    local.talk.say("stop_task", task="worker:0", attempt=0, grace=0)
    local.talk.wait_for("task_gone")
