"""Real agents, and editors that debug what waits at a breakpoint."""

from __future__ import annotations

import array
import json
import socket

import pytest

from support.agent_client import PATIENCE, LocalAgent
from support.debugged_task import Terminal, begin, connect, events
from tflaunch_worker import wire

pytestmark = pytest.mark.agent

STOPPED = {"kind": "stopped", "file": "a.py", "line": 1, "function": "f"}
EDITOR = {"kind": "editor", "directory": "/code"}


class Process:
    """A process of a task that waits, as far as its agent notices."""

    def __init__(self, agent: LocalAgent) -> None:
        self.channel = connect(agent)
        self.channel.settimeout(PATIENCE)
        self._decoder = wire.Decoder()
        self._say(STOPPED)
        self._say({"kind": "asks"})
        agent.talk.wait_until(lambda: events(agent.talk, "breakpoint_reached"))

    def _say(self, message: dict[str, object], *descriptors: int) -> None:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        self.channel.sendmsg([wire.encode(message)], [rights] if descriptors else [])

    def hear(self) -> str:
        """Return the kind of the agent's next message, "" if it has hung up."""
        data = self.channel.recv(65536)
        return ", ".join(str(message["kind"]) for message, _ in self._decoder.feed(data))

    def offer(self, count: int = 1) -> socket.socket:
        """Answer the agent with a connection for an editor; return its other end."""
        assert self.hear() == "editor"
        ours, theirs = socket.socketpair()
        self._say(EDITOR, *[theirs.fileno()] * count)
        theirs.close()
        ours.settimeout(PATIENCE)
        return ours

    def refuse(self, text: object) -> None:
        """Answer the agent that no editor can debug it."""
        assert self.hear() == "editor"
        self._say({"kind": "editor_refused", "text": text})

    def ask(self) -> None:
        """Ask for a command."""
        self._say({"kind": "asks"})


@pytest.fixture
def process(local: LocalAgent) -> Process:
    """Start a task with a process that waits."""
    local.talk.start("worker:0", "sleep", "3600")
    local.talk.wait_for("task_started")
    return Process(local)


def test_bytes_reach_both_ends(local: LocalAgent, process: Process) -> None:
    """However many; other debuggers wait until the editor has left, with which the process continues."""
    terminal = Terminal(local.talk, 1, is_editor=True)
    editor = process.offer()
    assert terminal.wait_for("debugger_ready")["directory"] == "/code"
    sent = bytes(range(256)) * 64
    for _ in range(64):  # more than the socket holds
        terminal.send(sent.decode("latin-1"))
    received = b""
    while len(received) < 64 * len(sent):
        received += editor.recv(65536)
    assert received == sent * 64
    terminal.wait_for("debugger_asks")
    editor.sendall(b"\xff\x00")
    assert terminal.wait_for("debugger_output")["body"] == b"\xff\x00"
    late = Terminal(local.talk, 2, is_editor=True)
    assert late.wait_left() == "in_editor"
    terminal.leave(continues=False)
    assert (editor.recv(1), process.hear()) == (b"", "")
    local.talk.wait_for("breakpoint_left")


def test_an_editor_that_has_said_nothing_changes_nothing(local: LocalAgent, process: Process) -> None:
    """The process hears that it has left, and waits for the next debugger."""
    first = Terminal(local.talk, 1, is_editor=True)
    editor = process.offer()
    first.wait_for("debugger_asks")
    second = Terminal(local.talk, 2)
    assert (first.wait_left(), editor.recv(1)) == ("replaced", b"")
    process.ask()
    assert process.hear() == "attached"
    process.ask()
    second.wait_for("debugger_asks")
    second.leave(continues=False)
    third = Terminal(local.talk, 3, is_editor=True)
    third.leave(continues=False)
    assert process.offer().recv(1) == b""
    assert len(events(local.talk, "breakpoint_left")) == 0


def test_a_process_can_refuse_editors(local: LocalAgent, process: Process) -> None:
    """With a reason; what is not as agreed ends the connection."""
    refused = Terminal(local.talk, 1, is_editor=True)
    process.refuse("no debugpy")
    assert refused.wait_for("debugger_left")["text"] == "no debugpy"
    process.ask()
    broken = Terminal(local.talk, 2, is_editor=True)
    process.refuse(3)
    assert broken.wait_left() == "ended"
    assert process.hear() == ""


@pytest.mark.parametrize("count", [0, 2])
def test_a_connection_comes_with_its_message(local: LocalAgent, process: Process, count: int) -> None:
    """Without one, the agent hangs up; more than one are closed."""
    terminal = Terminal(local.talk, 1, is_editor=True)
    editor = process.offer(count)
    if count:
        terminal.wait_for("debugger_ready")
        local.talk.say("stop_task", task="worker:0", attempt=0, grace=0)
        assert (terminal.wait_left(), editor.recv(1)) == ("stopped", b"")
    else:
        assert terminal.wait_left() == "ended"


def test_an_editor_that_leaves_early_lets_the_process_continue(local: LocalAgent) -> None:
    """Even if it has not said what it wants: the process is its own once it has sent anything."""
    begin(local)
    terminal = Terminal(local.talk, 1, is_editor=True)
    terminal.wait_for("debugger_ready")
    body = json.dumps({"seq": 1, "type": "request", "command": "initialize", "arguments": {"adapterID": "x"}})
    terminal.write(f"Content-Length: {len(body)}\r\n\r\n{body}")
    terminal.wait_for("debugger_output")
    terminal.leave(continues=True)
    assert terminal.wait_left() == "continued"
    assert local.talk.text("worker:0") == "up\ngot 1.5\n"
    assert local.talk.wait_for("task_exited")["code"] == 0


def test_who_uses_debugpy_is_left_alone(local: LocalAgent) -> None:
    """Another editor may debug it already."""
    begin(local)
    terminal = Terminal(local.talk)
    terminal.write("import debugpy")
    terminal.write("!debugpy.listen(0, in_process_debug_adapter=True) and None")
    terminal.wait_for("debugger_asks")
    terminal.leave(continues=False)
    editor = Terminal(local.talk, 2, is_editor=True)
    assert "the program itself uses it" in editor.wait_for("debugger_left")["text"]
