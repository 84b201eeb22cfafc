"""What `explain` says of a run."""

import json
import shlex
from typing import Any

import pytest

from support.launch import Launch

pytestmark = pytest.mark.cli


FOUND = (
    "worker:1 exited with code 1 (FileNotFoundError: [Errno 2] No such file or directory: 'shard-1', train.py, line 3)"
)
RAISES = """import os
def load(path):
    return open(path)
if os.environ["TFLAUNCH_TASK"] == "worker:1":
    load("shard-1")
import time; time.sleep(600)
"""


def explained(launch: Launch) -> Any:
    """Return what `explain --json` prints."""
    return json.loads(launch.succeed("explain", "--json").stdout)


def test_a_failure_is_explained_with_its_evidence(launch: Launch) -> None:
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
        launch.succeed(*shlex.split(command)[1:])
    shown = launch.run("explain").stdout
    assert shown.startswith(f"{found['run']}: failed\n{FOUND}\n")
    assert "FileNotFoundError" in shown
    assert f"next: {found['next'][0]}\n" in shown


def test_what_has_just_failed_is_explained_and_shown_first(launch: Launch) -> None:
    """Unless a run has begun since: `explain` and `logs` without RUN, and `logs -f`, which is about the live one."""
    lives = launch.shell("echo lives; exec sleep 600", strategy="none")
    launch.detach(lives)
    failing = launch.spec("failing.json", cluster={"worker": 1}, command=["sh", "-c", "echo fails; exit 3"])
    assert launch.up(failing, "--set", "restart.max=0").returncode == 3
    assert explained(launch)["exit_code"] == 3
    assert [launch.run("logs", *task).stdout for task in ([], ["worker"])] == ["fails\n", "fails\n"]
    launch.wait_for_log("worker:1", "lives")
    launch.detach(lives, "--name", "later")
    launch.succeed("down", "job")
    assert explained(launch)["run"].startswith("later-")
    launch.succeed("down")
    stopped = explained(launch)
    assert (stopped["state"], stopped["exit_code"], stopped["culprit"]["task"]) == ("stopped", 143, None)
