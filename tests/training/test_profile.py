"""`tflaunch profile` of a real training, which goes on."""

from __future__ import annotations

from typing import Any

import pytest

from support.launch import Launch
from support.waiting import wait_until

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.usefixtures("shared_import"),
]

PROGRAM = """
from pathlib import Path
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def total(number):
    return strategy.reduce("SUM", strategy.run(lambda: number), axis=None)
def train():
    steps = 0
    while total(tf.constant(float(Path("enough").exists()))) < 2:
        steps += 1
        if steps == 10:
            print("trains", flush=True)
    print("trained", steps > 10, flush=True)
train()
"""


def profiles_show(launch: Launch, *frames: str) -> bool:
    """Profile both workers; return whether the stacks and the flame graphs of both have these frames."""
    profiled = launch.succeed("profile", "--for", "1s")
    assert sorted(line[:9] for line in profiled.stdout.splitlines()) == ["worker:0:", "worker:1:"]
    session = max((launch.run_directory() / "profiles/python").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    files = [session / f"worker-{number}.{kind}" for number in range(2) for kind in ("folded", "svg")]
    return all(frame in file.read_text() for file in files for frame in frames)


def test_a_training_that_is_profiled_goes_on(launch: Launch) -> None:
    """Its own code is in the stacks, and what it waits for."""
    (launch.directory / "train.py").write_text(PROGRAM)
    about: dict[str, Any] = {"env": {"TF_CPP_MIN_LOG_LEVEL": "2"}, "restart": {"max": 0}}
    launch.detach(launch.spec(cluster={"worker": 2}, command=["python", "train.py"], **about))
    launch.wait_for_log("worker:0", "trains")
    # The profile of a busy machine may have a single sample.
    wait_until(lambda: profiles_show(launch, "train (train.py:", "quick_execute (execute.py:"))
    (launch.directory / "enough").touch()
    launch.succeed("wait")
    assert "trained True" in launch.log("worker:1")
