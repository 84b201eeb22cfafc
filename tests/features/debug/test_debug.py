"""`tflaunch debug`: the debugger of a task that waits at a `breakpoint()`, in a terminal."""

from pathlib import Path
from typing import Any

import pytest

from support.launch import Launch
from support.terminals import Terminal

PROGRAM = """
import os, sys, threading
def step(number):
    loss = number / 2
    breakpoint()
    return loss
def run():
    print("got", step(3), flush=True)
if os.environ["TFLAUNCH_TASK"] in sys.argv[1:]:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
"""
PYTHON = "/usr/bin/python3"  # where tflaunch is not installed


def spec(launch: Launch, *tasks: str, **fields: Any) -> Path:
    """Write a spec of two workers; these of them stop at a breakpoint."""
    (launch.directory / "train.py").write_text(PROGRAM)
    about = {"cluster": {"worker": 2}, "strategy": "none", "timeouts": {"lease": 600, "grace": 5}}
    return launch.spec(**{**about, "command": [PYTHON, "train.py", *tasks], **fields})


def begin(launch: Launch, *tasks: str, **fields: Any) -> None:
    launch.succeed("up", "-d", spec(launch, *tasks, **fields))


@pytest.mark.parametrize(
    ("keys", "code", "said", "farewell"),
    [(b"!loss = 7\n\x04", 0, "got 7\n", "worker:1 continues"), (b"q\n", 143, "", "as its debugger asks")],
    ids=["a statement and Ctrl-D", "q"],
)
def test_leaving_it_leaves_a_clean_run(launch: Launch, keys: bytes, code: int, said: str, farewell: str) -> None:
    """It continues, or ends as with `tflaunch down`."""
    begin(launch, "worker:1")
    terminal = Terminal(launch, "tflaunch debug worker:1", b"(Pdb) ")
    (waits,) = [task for task in launch.status()["tasks"] if task["breakpoint"]]
    assert (waits["task"], waits["state"], waits["breakpoint"]) == ("worker:1", "running", "train.py, line 6, in step")
    assert (
        "worker:1 waits at a breakpoint in train.py, line 6, in step\nnext: `tflaunch debug " in launch.run("ps").stdout
    )
    terminal.type(keys)
    shown, debugged = terminal.read_to_end()
    assert (debugged, farewell in shown) == (0, True), shown
    assert launch.run("wait").returncode == code
    assert launch.log("worker:1") == said
    kinds = [record["kind"] for record in launch.journal()]
    assert kinds.count("breakpoint_reached") == kinds.count("breakpoint_left") == 1
    assert kinds.count("task_started") == 2


def test_a_terminal_that_is_lost_can_come_back(launch: Launch) -> None:
    """After Ctrl-C and `kill -9` the task keeps waiting, and another terminal takes over from one that stays."""
    begin(launch, "worker:0", "worker:1")
    beside = Terminal(launch, "tflaunch debug worker:0", b"(Pdb) ")
    first = Terminal(launch, "exec tflaunch debug worker:1", b"(Pdb) ")
    first.type(b"\x03")
    shown, code = first.read_to_end()
    assert (code, "worker:1 keeps waiting: tflaunch debug " in shown) == (130, True), shown
    second = Terminal(launch, "exec tflaunch debug worker:1", b"(Pdb) ")
    second.hang_up()
    third = Terminal(launch, "exec tflaunch debug worker:1", b"(Pdb) ")
    fourth = Terminal(launch, "exec tflaunch debug worker:1", b"(Pdb) ")
    shown, code = third.read_to_end()
    assert (code, "another terminal debugs worker:1 now" in shown) == (0, True), shown
    unknown = launch.run("debug", "worker:7")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    for terminal in (fourth, beside):
        terminal.type(b"c\n")
        assert terminal.read_to_end()[1] == 0
    launch.succeed("wait")
    ended = launch.run("debug", "worker:1")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "has ended with exit code 0" in ended.stderr
