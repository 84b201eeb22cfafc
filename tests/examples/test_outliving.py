"""Real training outlives each of its supervisors."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path

import psutil
import pytest

from support.launch import LONG, PATIENCE, Launch
from support.mnist import ENOUGH, ENOUGH_QUICKLY
from support.specs import REPOSITORY
from support.waiting import wait_gone

pytestmark = [pytest.mark.tensorflow, pytest.mark.thorough]

EPOCHS = 20 if LONG else 12
ACCURACY = ENOUGH if LONG else ENOUGH_QUICKLY
BATCH = 64 if LONG else 16
WHILE_STARTING, IN_TRAINING = (5, 11) if LONG else (1, 3)
"""Kills at random moments; four more, at chosen ones, make twenty every night."""
SEED = 20
TASKS = ("worker:0", "worker:1")


def mirrored(launch: Launch, after: str) -> Path:
    """Write the spec of the mirrored example, with short epochs.

    A file next to the spec gets a copy of each task's output; ``after`` is a script that follows the training.
    """
    spec = json.loads((REPOSITORY / "cluster_specs" / "mnist_multi_worker.json").read_text())
    size = f"--epochs {EPOCHS} --steps-per-epoch 10 --batch-size {BATCH} --min-accuracy {ACCURACY}"
    program = " ".join([*spec["command"], f"--data synthetic {size}"])
    script = f"{program} 2>&1 | tee $TFLAUNCH_RUN-$TFLAUNCH_TASK && {after}"
    spec["command"] = ["bash", "-o", "pipefail", "-c", script]
    return launch.spec("mirrored.json", **spec)


def accuracy(launch: Launch, run: str) -> float:
    """Return the lower accuracy of both workers in a run, whose weights must be equal."""
    logs = launch.succeed("logs", run)
    digests = re.findall(r"weights sha256 (\w+)", logs.stdout)
    accuracies = re.findall(r"test accuracy ([\d.]+)", logs.stdout)
    assert len(digests) == len(accuracies) == len(TASKS)
    assert len(set(digests)) == 1
    return min(map(float, accuracies))


def pids(launch: Launch, run: str) -> dict[str, psutil.Process]:
    """Return the processes of a run's tasks."""
    return {task["task"]: psutil.Process(task["pid"]) for task in launch.status(run)["tasks"]}


def begin_and_kill(launch: Launch, spec: Path) -> str:
    """Start a detached run, kill its supervisor once the journal has a plan, and return its name."""
    before = {*launch.home.glob("runs/*")}
    starting = launch.start("up", "-d", spec)
    command = psutil.Process(starting.pid)
    while not (found := [child for child in command.children() if _writes_journal(child)]):
        if starting.poll() is not None:  # on a busy machine, the tasks may run before this looks
            found = [launch.supervisor()]
            break
    (supervisor,) = found
    supervisor.kill()
    _, err = starting.communicate(timeout=PATIENCE)
    assert starting.returncode in (0, 125), err  # 0: the tasks were already running
    (directory,) = {*launch.home.glob("runs/*")} - before
    return directory.name


def _writes_journal(process: psutil.Process) -> bool:
    """Whether this is a supervisor with a plan in its journal; other children become agents."""
    try:
        journals = [Path(file.path) for file in process.open_files() if file.path.endswith("/events.jsonl")]
    except psutil.Error:
        return False
    return any(journal.read_bytes() for journal in journals)


def resume(launch: Launch, run: str) -> psutil.Process:
    """Start a new detached supervisor, and return it."""
    resumed = launch.run("up", "--resume", run, "-d")
    assert (resumed.returncode, resumed.stdout) == (0, f"{run}\n"), resumed.stderr
    return launch.supervisor()


def kill(supervisor: psutil.Process) -> None:
    """End a supervisor as the kernel's OOM killer would."""
    supervisor.kill()
    wait_gone(supervisor.pid)


def resume_and_kill(launch: Launch, run: str, moment: random.Random) -> None:
    """Resume, here or detached, and be killed at a random moment: while starting, recalling or running."""
    if moment.random() < 1 / 3:
        supervisor = resume(launch, run)
        time.sleep(moment.uniform(0, 1))  # clock: the random moment is the subject
        kill(supervisor)
    else:
        command = launch.start("up", "--resume", run)
        time.sleep(moment.uniform(0, 2))  # clock: the random moment is the subject
        command.kill()
        command.communicate(timeout=PATIENCE)


def test_training_does_not_notice_killed_supervisors(launch: Launch) -> None:
    """Before the tasks run, while they start, train and end: the same processes, output and weights.

    tests/cli logs out of a run that does not train.
    """
    run = begin_and_kill(launch, mirrored(launch, "until test -e go; do sleep 0.05; done"))
    kill(resume(launch, run))
    processes = pids(launch, run)
    moment = random.Random(SEED)
    for _ in range(WHILE_STARTING):
        resume_and_kill(launch, run, moment)
    supervisor = resume(launch, run)
    launch.wait_for_log("worker:0", "batch: ", run=run)
    kill(supervisor)
    for _ in range(IN_TRAINING):
        resume_and_kill(launch, run, moment)
    supervisor = resume(launch, run)
    for task in TASKS:  # they have trained, and are held until `go`
        launch.wait_for_log(task, "weights sha256", run=run)
    assert pids(launch, run) == processes
    supervisor.suspend()
    (launch.directory / "go").touch()
    for process in processes.values():
        wait_gone(process.pid)
    kill(supervisor)
    ended = launch.succeed("up", "--resume", run)
    assert "tflaunch: done: 2 tasks in " in ended.stderr.splitlines()[-1]
    assert accuracy(launch, run) >= ACCURACY
    kept = launch.home / "runs" / run
    for task in TASKS:
        log = kept / "logs" / f"{task.replace(':', '-')}.log"
        assert log.read_bytes() == (launch.directory / f"{run}-{task}").read_bytes()
    records = [json.loads(line) for line in (kept / "events.jsonl").read_text().splitlines()]
    assert [record["seq"] for record in records] == list(range(len(records)))
    assert sorted(record["task"] for record in records if record["kind"] == "task_started") == list(TASKS)
