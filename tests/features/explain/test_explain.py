"""What `explain` says of a run."""

import json
import shlex
from typing import Any

import pytest

from support.job_history import HERE, parameter_server
from support.launch import PATIENCE, Launch
from tflaunch.core.events import TaskExited
from tflaunch.features.explain.explanation import explain_run

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


def test_a_live_run_and_one_whose_supervisor_was_killed(launch: Launch) -> None:
    """What it says to do next is done: the run is taken over."""
    launch.detach(launch.shell("echo on; sleep 600", strategy="none", timeouts={"lease": 60}))
    launch.wait_for_log("worker:1", "on")
    alive = explained(launch)
    assert (alive["state"], alive["exit_code"]) == ("running", None)
    assert alive["sentence"].startswith("no step was reported yet, after ")
    assert launch.run("explain").stdout.startswith(f"{alive['run']}: first step: no step was reported yet, after ")
    supervisor = launch.supervisor()
    supervisor.kill()
    supervisor.wait(PATIENCE)
    lost = explained(launch)
    assert lost["sentence"].startswith("its supervisor was killed; its tasks live on for ")
    (resume,) = lost["next"]
    launch.succeed(*shlex.split(resume)[1:])
    launch.succeed("down")
    stopped = explained(launch)
    assert (stopped["state"], stopped["exit_code"]) == ("stopped", 143)
    assert stopped["culprit"]["task"] is None


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


def test_the_sentence_of_a_live_run_names_servers_that_have_ended() -> None:
    history = parameter_server().happens(TaskExited(HERE, "ps:0", 0, 0, None, 0.0))
    told = explain_run(history.job, history.status(), lambda *_: [], history.known)
    assert told.sentence.startswith(
        f"{history.status().because}; ps:0 ended with code 0, though the job still needs it; "
    )
