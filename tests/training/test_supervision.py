"""Preemptions and lost workers, with real TensorFlow processes and real deaths."""

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.launch import Launch
from support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("shared_import")]

PROGRAMS = Path(__file__).parent / "programs"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}
SERVERS = {"worker": {"server": True}, "ps": {"server": True}}


def spec(launch: Launch, program: str, *arguments: object, **fields: Any) -> Path:
    """Write a spec, by default of two mirrored workers, that run one of the programs."""
    command = ["python", str(PROGRAMS / program), *map(str, arguments)]
    return launch.spec(**{"cluster": {"worker": 2}, "command": command, "env": QUIET, **fields})


def finish(running: subprocess.Popen[str]) -> str:
    return running.communicate(timeout=PATIENCE)[1]


def pid_of(launch: Launch, running: subprocess.Popen[str], task: str, attempt: int) -> int:
    (start,) = wait_until(lambda: launch.records("task_started", task=task, attempt=attempt), running)
    return start["pid"]


def starts(launch: Launch, task: str) -> list[int]:
    return [record["attempt"] for record in launch.records("task_started", task=task)]


def words(launch: Launch, task: str) -> dict[int, str]:
    """Return the output of each attempt of a task."""
    first, *more = re.split(rf"---- tflaunch: {task} attempt (\d+) ----\n", launch.log(task))
    return {0: first, **{int(number): text for number, text in zip(more[::2], more[1::2], strict=True)}}


def steps(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"^step (\d+)", text, re.MULTILINE)]


def begun_at(text: str) -> int:
    """Return the step that an attempt has restored."""
    found = re.search(r"begins at step (\d+)$", text, re.MULTILINE)
    assert found, text
    return int(found[1])


def wait_for_steps(launch: Launch, running: subprocess.Popen[str], task: str, attempt: int, count: int = 2) -> None:
    def done() -> bool:
        text = launch.log(task)
        mark = f"---- tflaunch: {task} attempt {attempt} ----\n"
        return (not attempt or mark in text) and len(steps(text.rpartition(mark)[2] if attempt else text)) >= count

    pid_of(launch, running, task, attempt)
    wait_until(done, running)


# ---- MultiWorkerMirroredStrategy


def test_preempted_workers_save_together_and_are_not_charged(launch: Launch) -> None:
    """TERM for one of them, twice: both exit with 42, and a budget of one restart is not charged."""
    restart = {"max": 1, "backoff": [0, 0]}
    running = launch.start("up", spec(launch, "preemptible.py", 2, 3, restart=restart))
    for attempt, task in enumerate(("worker:1", "worker:0")):
        wait_for_steps(launch, running, "worker:0", attempt)
        os.kill(pid_of(launch, running, task, attempt), signal.SIGTERM)
    err = finish(running)
    assert running.returncode == 0, err
    assert err.count("exited with code 42: preempted") == 2
    assert [record["code"] for record in launch.records("task_exited")] == [42, 42, 42, 42, 0, 0]
    assert not any(record["was_told"] for record in launch.records("task_exited"))
    for task in ("worker:0", "worker:1"):
        said = words(launch, task)
        assert begun_at(said[1]) == steps(said[0])[-1]
        assert begun_at(said[2]) == steps(said[1])[-1]
        assert len(steps(said[2])) == 3


# ---- ParameterServerStrategy


def test_a_lost_ps_worker_comes_back_alone(launch: Launch) -> None:
    """At its address, for a chief that waits for it; an exit that requests a restart is not charged."""
    os.mkfifo(launch.directory / "fifo")
    own_server = {"command": ["python", str(PROGRAMS / "server.py"), "fifo"]}
    written = spec(
        launch,
        "chief.py",
        cluster={"chief": 1, "worker": 1, "ps": 1},
        roles={**SERVERS, "worker": own_server},
        restart={"max": 1, "backoff": [0, 0]},
    )
    running = launch.start("up", written)
    wait_for_steps(launch, running, "chief:0", 0)
    for attempt, death in enumerate(("42", "143", "42", "kill")):
        pid = pid_of(launch, running, "worker:0", attempt)
        if death == "kill":
            os.kill(pid, signal.SIGKILL)
        else:
            (launch.directory / "fifo").write_text(death)
        wait_until(lambda: launch.records("task_exited", task="worker:0", attempt=attempt), running)  # noqa: B023
        before = len(steps(launch.log("chief:0")))
        # There is no other worker: a step shows that the chief has accepted this one again.
        wait_until(lambda: len(steps(launch.log("chief:0"))) > before + 1, running)  # noqa: B023
    (launch.directory / "enough").touch()
    err = finish(running)
    assert running.returncode == 0, err
    assert err.count("it restarts alone") == 4
    assert starts(launch, "worker:0") == [0, 1, 2, 3, 4]
    assert starts(launch, "chief:0") == starts(launch, "ps:0") == [0]
    held = [record["ports"]["worker:0"] for record in launch.records("ports_held")]
    assert len(set(held)) == 1
    done = steps(launch.log("chief:0"))
    # A worker that dies between its addition and its answer has the closure run again, so a death may count twice.
    gains = [after - before for before, after in zip([0, *done], done, strict=False)]
    assert set(gains) <= {1, 2}
    assert gains.count(2) <= 4
