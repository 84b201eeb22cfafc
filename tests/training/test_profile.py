"""`tflaunch profile` of a real training, which goes on."""

from __future__ import annotations

import pytest

from support.launch import Launch

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


def test_a_training_that_is_profiled_goes_on(launch: Launch) -> None:
    """Its own code is in the stacks, and what it waits for."""
    (launch.directory / "train.py").write_text(PROGRAM)
    about = {"env": {"TF_CPP_MIN_LOG_LEVEL": "2"}, "restart": {"max": 0}}
    started = launch.run("up", "-d", launch.spec(cluster={"worker": 2}, command=["python", "train.py"], **about))
    assert started.returncode == 0, started.stderr
    launch.wait_for_log("worker:0", "trains")
    profiled = launch.run("profile", "--for", "1s")
    assert profiled.returncode == 0, profiled.stderr
    assert sorted(line[:9] for line in profiled.stdout.splitlines()) == ["worker:0:", "worker:1:"]
    (session,) = (launch.run_directory() / "profiles/python").iterdir()
    for name in ("worker-0", "worker-1"):
        assert "train (train.py:" in (session / f"{name}.folded").read_text()
        assert "quick_execute (execute.py:" in (session / f"{name}.svg").read_text()
    (launch.directory / "enough").touch()
    assert launch.run("wait").returncode == 0
    assert "trained True" in launch.log("worker:1")
