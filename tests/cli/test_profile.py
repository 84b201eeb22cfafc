"""`tflaunch profile`: Python stacks of live tasks, and profiles by a server that behaves as TensorFlow's."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from support.launch import PATIENCE, Launch
from support.profiled_program import write_program
from support.xspace import plane, xspace
from tflaunch.cli._json_output import schema_of_output

pytestmark = pytest.mark.cli

STEP = "EagerLocalExecute: __inference_step_1"
LINES = {"python": [(STEP, 0, 10**9)], "pool": [("MatMul:MatMul", 0, 3 * 10**8)], "tf_numa": [("x" * 700_000, 0, 1)]}
PROFILE = xspace(plane("/host:CPU", LINES))  # larger than a part


def begin(launch: Launch, **cluster: int) -> str:
    """Start a run whose tasks can be profiled, and wait until they can be; return its name."""
    command = [sys.executable, *write_program(launch.directory, PROFILE)]
    timeouts = {"grace": 1}
    started = launch.run("up", "-d", launch.spec(cluster=cluster, command=command, timeouts=timeouts))
    assert started.returncode == 0, started.stderr
    listening = {f"worker:{index}" for index in range(min(cluster["worker"], 3))}  # as may an evaluator
    until = time.monotonic() + PATIENCE
    while not listening <= {record["task"] for record in launch.journal() if record["kind"] == "port_opened"}:
        assert time.monotonic() < until
        time.sleep(0.1)
    return started.stdout.strip()


def left_behind(launch: Launch) -> list[Path]:
    """Return what profiles have left in the directories of tasks and run, except for finished profiles."""
    run = launch.run_directory()
    tasks = list(run.glob("agents/*/tasks/*/tflaunch-*"))
    return [*tasks, *run.glob("profiles/**/*.part")]


def test_each_task_is_profiled_and_what_fails_is_a_sentence(launch: Launch) -> None:
    """Those of the others stay; Python stacks are sampled in any task."""
    run = begin(launch, worker=4, evaluator=1)
    made = launch.run("profile", "--tensorflow", "--for", "200ms")
    assert made.returncode == 0, made.stderr
    assert sorted(made.stdout.splitlines()) == [
        f"worker:{index}: 1 step of 1.0 ms (step): 70% host, 30% compute, 0% input, 0% communication"
        for index in (0, 1)
    ]
    problems = sorted(line for line in made.stderr.splitlines() if "is not profiled" in line)
    assert problems == [
        "tflaunch: evaluator:0 is not profiled: an evaluator has no server that profiles it; --python samples it",
        "tflaunch: worker:2 is not profiled: TensorFlow's profiler refuses: Another profiling session active.",
        "tflaunch: worker:3 is not profiled: TensorFlow does not listen on its port yet",
    ]
    assert f"`tflaunch tensorboard --profiles {run}` shows them" in made.stderr
    (session,) = (launch.run_directory() / "profiles/plugins/profile").iterdir()
    assert sorted(path.name for path in session.iterdir()) == ["worker-0.xplane.pb", "worker-1.xplane.pb"]
    assert all(path.read_bytes() == PROFILE for path in session.iterdir())
    none = launch.run("profile", "--tensorflow", "--json", "worker:2", "--for", "0.1")
    jsonschema.validate(printed := json.loads(none.stdout), schema_of_output("profile"))
    (about,) = printed["tasks"]
    assert (none.returncode, about["path"], about["problem"][:10]) == (125, None, "TensorFlow")
    sampled = launch.run("profile", "--for", "500ms", "worker:0", "evaluator:0")
    assert sampled.returncode == 0, sampled.stderr
    (session,) = (launch.run_directory() / "profiles/python").iterdir()
    assert "% of the main thread in train (train.py:" in sampled.stdout
    stacks = (session / "worker-0.folded").read_text()
    assert "main thread;<module> (train.py:" in stacks
    assert "train (train.py:" in (session / "worker-0.svg").read_text()
    assert left_behind(launch) == []
    launch.run("down")
    ended = launch.run("profile")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_profile_can_be_interrupted(launch: Launch, how: signal.Signals) -> None:
    """The task is told to stop, goes on, and can be profiled again; nothing is left."""
    begin(launch, worker=1)
    profile = launch.start("profile", "--tensorflow", "--for", "10m")
    until = time.monotonic() + PATIENCE
    while "profiling" not in launch.log("worker:0"):
        assert time.monotonic() < until
        time.sleep(0.05)
    profile.send_signal(how)
    _, err = profile.communicate(timeout=PATIENCE)
    assert profile.returncode == (130 if how is signal.SIGINT else -how), err
    while not {"told to stop", "has written"} <= set(launch.log("worker:0").splitlines()) or left_behind(launch):
        assert time.monotonic() < until
        time.sleep(0.05)
    again = launch.run("profile", "--tensorflow", "--for", "100ms")
    assert again.returncode == 0, again.stderr
    assert len(list((launch.run_directory() / "profiles/plugins/profile").iterdir())) == 1
    assert launch.status()["phase"] == "running"
    assert launch.run("down").returncode == 0
