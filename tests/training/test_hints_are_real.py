"""The hints match TensorFlow's real messages: short programs that fail under `tflaunch up`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.launch import Launch
from tflaunch.explain.hints import Facts, find_hint, saw_peer_vanish
from tflaunch.explain.tracebacks import last_traceback

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.usefixtures("shared_import"),
]

_SERVED = """
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
"""
NO_STEPS = f"""{_SERVED}
data = tf.data.Dataset.from_tensors((tf.ones((2,)), tf.ones((1,)))).repeat().batch(4)
model.fit(data, epochs=1, verbose=2)
"""
CLOSURE = f"""{_SERVED}
def examples(context):
    def parse(number):
        value = tf.strings.to_number(tf.gather(["1", "x"], tf.cast(number > 5, tf.int64)))
        return tf.reshape(value, (1,)), tf.reshape(value, (1,))
    return tf.data.Dataset.range(100).map(parse).batch(2).repeat()
creator = tf.keras.utils.experimental.DatasetCreator(examples)
model.fit(creator, epochs=1, steps_per_epoch=10, verbose=2)
"""
SERVERS = {"worker": {"server": True}, "ps": {"server": True}}

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


def last_lines(launch: Launch, program: str, cluster: dict[str, int], **fields: Any) -> tuple[list[str], Facts]:
    """Run a program that must fail; return the last output of its first task, and what is known of it."""
    role, strategy = ("chief", "parameter_server") if "ps" in cluster else ("worker", "multi_worker_mirrored")
    command, env = ["python", "-c", program], {"TF_CPP_MIN_LOG_LEVEL": "2"}
    ended = launch.up(launch.spec(cluster=cluster, command=command, env=env, restart={"max": 0}, **fields))
    assert ended.returncode == 1, ended.stderr
    return launch.log(f"{role}:0").splitlines(), Facts(strategy, task=f"{role}:0", role=role, legacy_keras=True)


@pytest.mark.thorough
def test_no_steps_under_parameter_servers(launch: Launch) -> None:
    """The chief fails with a message of tf_keras."""
    failed = last_lines(launch, NO_STEPS, {"chief": 1, "worker": 1, "ps": 1}, roles=SERVERS)
    assert "steps_per_epoch" in (find_hint(*failed) or "")


@pytest.mark.thorough
def test_a_port_that_is_taken(launch: Launch) -> None:
    """By a program that sets its own TF_CONFIG."""
    assert "its port is in use" in (find_hint(*last_lines(launch, OWN_CONFIG, {"worker": 1})) or "")


@pytest.mark.thorough
def test_a_worker_that_needs_one_who_has_finished(launch: Launch) -> None:
    """TensorFlow calls it unhealthy, 10 s later, with a traceback that is complete."""
    lines, facts = last_lines(launch, UNEVEN, {"worker": 2})
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


@pytest.mark.thorough
def test_an_error_of_a_closure_in_fit(launch: Launch) -> None:
    """With its class, message and line, and without a lost peer: Python 3.11 prints carets in the first column."""
    (launch.directory / "train.py").write_text(CLOSURE.lstrip())
    cluster = {"chief": 1, "worker": 1, "ps": 1}
    ended = launch.up(launch.spec(cluster=cluster, command=["python", "train.py"], roles=SERVERS, legacy_keras=True))
    assert ended.returncode == 1
    cause = "(InvalidArgumentError: StringToNumberOp could not correctly convert string: x, train.py, line 14"
    assert cause in ended.stderr
    assert "it lost" not in ended.stderr
    assert json.loads(launch.run("ps", "--json").stdout)["restarts"] <= 1
