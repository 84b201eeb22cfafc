"""A task that hangs writes its stacks into its output before it ends."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from support.agent_client import LocalAgent, Talk

pytestmark = pytest.mark.agent

_HANGS = """
import time

def wait_for_the_others():
    print("waiting", flush=True)
    time.sleep(300)

wait_for_the_others()
"""


def start(talk: Talk, task: str, program: Path) -> int:
    """Start a task that hangs; return its pid once it does."""
    talk.start(task, sys.executable, str(program), PYTHONFAULTHANDLER="1")
    talk.wait_until(lambda: b"waiting" in talk.output.get((task, 0), b""))
    pid = talk.wait_for("task_started", task)["pid"]
    assert isinstance(pid, int)
    return pid


def test_a_task_that_hangs_writes_its_stacks(local: LocalAgent, tmp_path: Path) -> None:
    """Even if the task is stopped."""
    program = tmp_path / "hangs.py"
    program.write_text(_HANGS)
    start(local.talk, "worker:0", program)
    os.kill(start(local.talk, "worker:1", program), signal.SIGSTOP)
    for task in ("worker:0", "worker:1"):
        local.talk.say("stop_task", task=task, attempt=0, grace=60.0, with_stacks=True)
    for task in ("worker:0", "worker:1"):
        assert local.talk.wait_for("task_exited", task)["signal"] == signal.SIGABRT
        assert "in wait_for_the_others" in local.talk.text(task)
