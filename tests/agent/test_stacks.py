"""A task that hangs writes its stacks into its output before it ends."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

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
_SPY = """#!/bin/sh
echo "native frames of process $3: $1 $2"
"""


def start(talk: Talk, task: str, program: Path, **env: Any) -> int:
    """Start a task that hangs; return its pid once it does."""
    talk.start(task, sys.executable, str(program), PYTHONFAULTHANDLER="1", **env)
    talk.wait_until(lambda: b"waiting" in talk.output.get((task, 0), b""))
    pid = talk.wait_for("task_started", task)["pid"]
    assert isinstance(pid, int)
    return pid


def test_a_task_that_hangs_writes_its_stacks(local: LocalAgent, tmp_path: Path) -> None:
    """After what py-spy says, if there is one on its PATH; even if the task is stopped."""
    program, spy = tmp_path / "hangs.py", tmp_path / "bin" / "py-spy"
    program.write_text(_HANGS)
    spy.parent.mkdir()
    spy.write_text(_SPY)
    spy.chmod(0o755)
    spied = start(local.talk, "worker:0", program, PATH=f"{spy.parent}:{os.environ['PATH']}")
    os.kill(start(local.talk, "worker:1", program), signal.SIGSTOP)
    for task in ("worker:0", "worker:1"):
        local.talk.say("stop_task", task=task, attempt=0, grace=60.0, with_stacks=True)
    for task in ("worker:0", "worker:1"):
        assert local.talk.wait_for("task_exited", task)["signal"] == signal.SIGABRT
        assert "in wait_for_the_others" in local.talk.text(task)
    native, _, own = local.talk.text("worker:0").partition("Fatal Python error: Aborted")
    assert f"native frames of process {spied}: dump --pid" in native
    assert "in wait_for_the_others" in own
