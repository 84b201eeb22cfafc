"""The hints match TensorFlow's real messages: short programs that fail under `tflaunch up`."""

import json

import pytest

from support.launch import Launch
from tflaunch.explain.causes import last_traceback
from tflaunch.explain.hints import Facts, find_hint
from tflaunch.features.hints.hint_rules import saw_peer_vanish

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("shared_import")]

WRONG_SHAPES = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(10)])
    model.compile("sgd", "categorical_crossentropy")
model.fit(tf.ones((32, 4)), tf.ones((32, 3)), batch_size=8)
"""

OWN_CONFIG = """
import json, os, socket
import tensorflow as tf
taken = socket.create_server(("", 0))
cluster = {"worker": [f"localhost:{taken.getsockname()[1]}", "localhost:9"]}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
tf.distribute.MultiWorkerMirroredStrategy()
"""

UNEVEN = """
import os
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def step():
    return strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)
for _ in range(3 if os.environ["TFLAUNCH_TASK"] == "worker:1" else 10):
    step()
"""


def last_lines(launch: Launch, program: str, workers: int) -> tuple[list[str], Facts]:
    """Run a program that must fail; return the last output of its first task, and what is known of it."""
    command, env = ["python", "-c", program], {"TF_CPP_MIN_LOG_LEVEL": "2"}
    ended = launch.up(launch.spec(cluster={"worker": workers}, command=command, env=env, restart={"max": 0}))
    assert ended.returncode == 1, ended.stderr
    facts = Facts("multi_worker_mirrored", task="worker:0", role="worker", legacy_keras=True)
    return launch.log("worker:0").splitlines(), facts


@pytest.mark.thorough
def test_a_port_that_is_taken(launch: Launch) -> None:
    """By a program that sets its own TF_CONFIG."""
    assert "its port is in use" in (find_hint(*last_lines(launch, OWN_CONFIG, 1)) or "")


@pytest.mark.thorough
def test_a_worker_that_needs_one_who_has_finished(launch: Launch) -> None:
    """TensorFlow calls it unhealthy, 10 s later, with a traceback that is complete."""
    lines, facts = last_lines(launch, UNEVEN, 2)
    assert "worker:1 had already ended" in (find_hint(lines, facts._replace(finished=("worker:1",))) or "")
    assert "it lost worker:1" in (find_hint(lines, facts) or "")
    assert saw_peer_vanish(lines)
    assert last_traceback(lines)[0] == "Traceback (most recent call last):"


def test_wrong_shapes_in_fit_are_told_once(launch: Launch) -> None:
    """With the message and the user's line, though AutoGraph's frames come last; no restart can help."""
    (launch.directory / "train.py").write_text(WRONG_SHAPES.lstrip())
    ended = launch.up(launch.spec(cluster={"worker": 2}, command=["python", "train.py"], legacy_keras=True))
    assert ended.returncode == 1
    found = "(ValueError: Shapes (None, 3) and (None, 10) are incompatible, train.py, line 6)"
    assert found in ended.stderr
    assert "every task failed alike, so a restart would fail too: ValueError at train.py:6" in ended.stderr
    assert found in launch.run("explain").stdout
    status = json.loads(launch.run("ps", "--json").stdout)
    assert (status["attempt"], status["restarts"]) == (0, 0)
    assert status["reason"].endswith("exited with code 1 (ValueError at train.py:6)")
