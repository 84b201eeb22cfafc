"""`explain`: why a run failed or how it stands, for people and for programs."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from support.launch import PATIENCE, Launch

pytestmark = pytest.mark.cli

FOUND = (
    "worker:1 exited with code 1 (FileNotFoundError: [Errno 2] No such file or directory: 'shard-1', train.py, line 5)"
)
RAISES = """
import os

def load(path):
    return open(path)

if os.environ["TFLAUNCH_TASK"] == "worker:1":
    load("shard-1")
import time; time.sleep(600)
"""


def explained(launch: Launch, *arguments: str) -> dict[str, Any]:
    """Return what `explain --json` prints."""
    shown = launch.run("explain", "--json", *arguments)
    assert shown.returncode == 0, shown.stderr
    loaded: dict[str, Any] = json.loads(shown.stdout)
    return loaded


def test_a_failure_is_explained_with_its_evidence(launch: Launch) -> None:
    """And the commands that it names work."""
    (launch.directory / "train.py").write_text(RAISES)
    spec = launch.spec(cluster={"worker": 2}, command=["python3", "train.py"], strategy="none", restart={"max": 0})
    assert launch.up(spec).returncode == 1
    found = explained(launch)
    assert (found["state"], found["exit_code"], found["sentence"]) == ("failed", 1, FOUND)
    assert (found["also_stopped"], found["not_restarted"]) == (["worker:0"], "restart.max is 0")
    culprit = found["culprit"]
    assert (culprit["task"], culprit["host"], culprit["attempt"]) == ("worker:1", "localhost", 0)
    assert culprit["traceback"][-1] == "FileNotFoundError: [Errno 2] No such file or directory: 'shard-1'"
    assert culprit["last_lines"] == []
    for command in found["next"]:
        ended = launch.run(*shlex.split(command)[1:])
        assert ended.returncode == 0, ended.stderr
    shown = launch.run("explain").stdout
    assert shown.startswith(f"{found['run']}: failed\n{FOUND}\n")
    assert "FileNotFoundError" in shown
    assert f"next: {found['next'][0]}\n" in shown


def test_a_success_has_no_culprit(launch: Launch) -> None:
    assert launch.up(launch.shell("true")).returncode == 0
    found = explained(launch)
    assert (found["state"], found["exit_code"], found["culprit"]) == ("succeeded", 0, None)
    assert found["sentence"].startswith("done: 2 tasks")


def test_a_live_run_and_one_whose_supervisor_was_killed(launch: Launch) -> None:
    """What it says to do next is done: the run is taken over, and stopped."""
    spec = launch.shell("echo on; sleep 600", timeouts={"lease": 60})
    assert launch.run("up", "-d", spec).returncode == 0
    alive = explained(launch)
    assert (alive["state"], alive["exit_code"], alive["sentence"]) == ("running", None, "running")
    assert launch.run("explain").stdout.splitlines()[0] == f"{alive['run']}: running"
    supervisor = launch.supervisor()
    supervisor.kill()
    supervisor.wait(PATIENCE)
    lost = explained(launch)
    assert lost["sentence"] == "its supervisor was killed"
    resume, down = lost["next"]
    assert launch.run(*shlex.split(resume)[1:], "-d").returncode == 0
    assert launch.run(*shlex.split(down)[1:]).returncode == 0
    stopped = explained(launch)
    assert (stopped["state"], stopped["exit_code"]) == ("stopped", 143)
    assert stopped["culprit"]["task"] is None


def test_what_has_just_failed_is_explained_and_shown_first(launch: Launch) -> None:
    """Unless a run has begun since: `explain` and `logs` without RUN, and `logs -f`, which is about the live one."""
    lives = launch.shell("echo lives; exec sleep 600", strategy="none")
    assert launch.run("up", "-d", lives).returncode == 0
    failing = launch.spec("failing.json", cluster={"worker": 1}, command=["sh", "-c", "echo fails; exit 3"])
    assert launch.up(failing, "--set", "restart.max=0").returncode == 3
    assert explained(launch)["exit_code"] == 3
    assert [launch.run("logs", *task).stdout for task in ([], ["worker"])] == ["fails\n", "fails\n"]
    launch.wait_for_log("worker:1", "lives")
    assert launch.run("up", "-d", lives, "--name", "later").returncode == 0
    assert launch.run("down", "job").returncode == 0
    assert explained(launch)["run"].startswith("later-")
    assert launch.run("down").returncode == 0
