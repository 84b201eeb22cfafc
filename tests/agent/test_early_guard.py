"""A guard that is started before it is known what it will guard."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.agent_client import Talk, wait_gone
from tflaunch.transport import local

pytestmark = pytest.mark.agent


@pytest.fixture
def early() -> Iterator[psutil.Process]:
    """A guard that waits for its run."""
    before = set(psutil.Process().children())
    local.start_early()
    (guard,) = set(psutil.Process().children()) - before
    yield guard
    local.dismiss_early()
    assert not guard.is_running()


def test_the_next_run_takes_it_under_its_own_name(early: psutil.Process, tmp_path: Path) -> None:
    """It is not restarted, and process lists show what it guards."""
    way = local.LocalWay(tmp_path / "agent", "my-run")
    link = way.open()
    assert way.guard is not None
    assert way.guard.pid == early.pid
    talk = Talk(link.socket)
    talk.hello()
    assert early.cmdline()[-1] == "tflaunch-agent:my-run"
    assert psutil.Process(int(talk.wait_for("greeted")["pid"])).cmdline()[-1] == "tflaunch-agent:my-run"
    link.close()
    way.end()
    assert not (tmp_path / "agent").exists()


def test_one_that_has_died_is_replaced(early: psutil.Process, tmp_path: Path) -> None:
    """A launcher may take its time, but a guard does not wait indefinitely."""
    early.kill()
    early.wait()
    way = local.LocalWay(tmp_path / "agent", "my-run")
    link = way.open()
    Talk(link.socket).hello()
    link.close()
    way.end()


def test_without_its_launcher_it_ends() -> None:
    """A launcher that refuses its spec, or is killed, leaves nothing behind."""
    program = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from tflaunch.transport import local
local.start_early()
print(open(f"/proc/self/task/{{os.getpid()}}/children").read(), flush=True)
os.kill(os.getpid(), 9)
"""
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    wait_gone(int(ended.stdout))


def test_a_spec_that_is_refused_leaves_none(tmp_path: Path) -> None:
    """The command ends with its guard."""
    environment = {**os.environ, "TFLAUNCH_HOME": str(tmp_path / "home")}
    argv = [sys.executable, "-m", "tflaunch", "up", str(tmp_path / "none.json")]
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert not (tmp_path / "home").exists()
    for process in psutil.process_iter():
        try:
            is_of_it = process.environ().get("TFLAUNCH_HOME") == environment["TFLAUNCH_HOME"]
        except psutil.Error:
            continue
        if is_of_it:
            process.wait(10)
