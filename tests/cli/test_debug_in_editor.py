"""`tflaunch debug --debugpy`: an editor debugs a task that waits at a `breakpoint()`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.dap_client import DapClient, connect_editor, read_configuration
from support.launch import PATIENCE, Launch, read_errors_until, read_until
from support.terminals import Terminal

pytestmark = pytest.mark.cli

PROGRAM = """
import os, sys, threading
def step(number):
    loss = number / 2
    breakpoint()
    loss += 1
    return loss
def child():
    loss = 1
    return loss
def threads():
    thread = threading.Thread(target=step, args=(0,))
    thread.start()
    thread.join()
if os.environ["TFLAUNCH_TASK"] == "worker:1":
    print("got", step(3), flush=True)
    if os.fork() == 0:
        child()
        os._exit(0)
    print("child", os.wait()[1], flush=True)
    threads()
    sys.exit(3)
"""
STEP, CHILD = 6, 10  # lines


@pytest.fixture
def program(launch: Launch) -> Path:
    """Start a run of two workers, one of them waiting at a breakpoint; return its program."""
    return begin(launch)


def begin(launch: Launch, python: str = sys.executable) -> Path:
    path = launch.directory / "train.py"
    path.write_text(PROGRAM)
    fields: dict[str, Any] = {"timeouts": {"lease": 60, "grace": 5}, "restart": {"max": 0}}
    spec = launch.spec(cluster={"worker": 2}, strategy="none", command=[python, "train.py"], **fields)
    started = launch.run("up", "-d", spec)
    assert started.returncode == 0, started.stderr
    return path


def debug(launch: Launch, *arguments: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """Return the command, and the launch configuration that it has printed."""
    command = launch.start("debug", "worker:1", "--debugpy", *arguments)
    return command, read_configuration(read_until(command, "\n}"))


def test_an_editor_debugs_a_task(launch: Launch, program: Path) -> None:
    """It steps, sets variables and breakpoints, in threads too, and stays until the task ends with an exit code."""
    command, configuration = debug(launch)
    assert "pathMappings" not in configuration
    editor = connect_editor(configuration)
    thread = editor.attach({program: [CHILD]}, justMyCode=True)
    assert editor.frames(thread)[:2] == [(str(program), "step", STEP), (str(program), "<module>", 16)]
    editor.evaluate(thread, "loss = 7  # é")
    editor.ask("next", threadId=thread)
    assert editor.frames(editor.wait_stopped())[0] == (str(program), "step", STEP + 1)
    late = launch.run("debug", "worker:1")
    assert (late.returncode, "an editor debugs worker:1 already" in late.stderr) == (2, True)
    editor.ask("continue", threadId=thread)  # the child does not stop, as it has no debugger
    assert editor.frames(editor.wait_stopped())[0] == (str(program), "step", STEP - 1)
    editor.ask("continue", threadId=thread)
    editor.read_to_end()
    editor.close()
    assert command.wait(PATIENCE) == 0
    assert launch.run("wait").returncode == 3
    assert launch.log("worker:1") == "got 8\nchild 0\n"
    kinds = [record["kind"] for record in launch.journal()]
    assert kinds.count("breakpoint_reached") == kinds.count("breakpoint_left")


@pytest.mark.parametrize(
    ("leaves", "code", "said"),
    [("disconnect", 0, "worker:1 continues"), ("SIGINT", 130, "continues without its editor"), ("SIGKILL", -9, "")],
)
def test_the_task_continues_when_the_editor_leaves(
    launch: Launch, program: Path, leaves: str, code: int, said: str
) -> None:
    """Or the command ends; the next `breakpoint()` stops it again, for any debugger."""
    command, configuration = debug(launch)
    editor = connect_editor(configuration)
    editor.attach({program: [STEP]})
    if leaves == "disconnect":
        editor.ask("disconnect")
        editor.close()
    else:
        command.send_signal(getattr(signal, leaves))
        editor.read_to_end()
    _, err = command.communicate(timeout=PATIENCE)
    assert (command.returncode, said in err) == (code, True), err
    launch.wait_for_log("worker:1", "child 0")
    terminal = Terminal(launch, "tflaunch debug worker:1")
    terminal.answer(b"(Pdb) ", b"c\n")
    assert terminal.read_to_end()[1] == 0
    assert launch.run("wait").returncode == 3
    assert launch.log("worker:1") == "got 2.5\nchild 0\n"


def test_an_editor_ends_the_run(launch: Launch, program: Path) -> None:
    """As `q` in a terminal: the process that the editor terminates must not seem to have succeeded."""
    command, configuration = debug(launch)
    editor = connect_editor(configuration)
    editor.attach({})
    editor.send("terminate")
    editor.read_to_end()
    editor.close()
    assert "as its debugger asks" in command.communicate(timeout=PATIENCE)[1]
    assert launch.run("wait").returncode == 143
    assert launch.log("worker:1") == ""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_only_an_editor_of_this_user_is_let_in(launch: Launch, program: Path) -> None:
    """The port is closed to other users; before an editor has come, Ctrl-C leaves the task waiting."""
    port = free_port()
    command, configuration = debug(launch, "--port", str(port))
    assert configuration["connect"]["port"] == port
    used = launch.run("debug", "worker:1", "--debugpy", "--port", str(port))
    assert (used.returncode, "--port" in used.stderr, used.stderr.count("\n")) == (2, True, 1)
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        read_errors_until(command, "does not speak the debug adapter protocol")
        assert stranger.recv(1) == b""
    if os.getuid() == 0:
        script = f"import socket; print(socket.create_connection(('127.0.0.1', {port})).recv(1))"
        nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "/usr/bin/python3", "-c", script]
        assert subprocess.run(nobody, check=False, capture_output=True, text=True).stdout == "b''\n"
        read_errors_until(command, "of another user")
    command.send_signal(signal.SIGINT)
    assert "worker:1 keeps waiting" in command.communicate(timeout=PATIENCE)[1]
    assert command.returncode == 130
    command, configuration = debug(launch)
    connection = socket.create_connection(("127.0.0.1", configuration["connect"]["port"]))
    DapClient(connection).attach({})
    ports = {each.laddr.port for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    assert configuration["connect"]["port"] not in ports
    launch.run("down")
    assert "worker:1 is being stopped" in command.communicate(timeout=PATIENCE)[1]


def test_a_python_without_debugpy_is_named(launch: Launch) -> None:
    """With the remedy; the task keeps waiting for a terminal."""
    begin(launch, "/usr/bin/python3")
    refused = launch.run("debug", "worker:1", "--debugpy")
    assert (refused.returncode, refused.stdout, refused.stderr.count("debugpy is not installed")) == (2, "", 1)
    assert "`/usr/bin/python3 -m pip install debugpy` installs it" in " ".join(refused.stderr.split())
    assert launch.run("debug", "--port", "5678").returncode == 2
    terminal = Terminal(launch, "tflaunch debug worker:1")
    terminal.answer(b"(Pdb) ", b"q\n")
    terminal.read_to_end()
    assert launch.run("wait").returncode == 143
