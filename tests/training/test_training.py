"""TensorFlow in a cluster that is joined by hand, and with the servers of tflaunch."""

from __future__ import annotations

import subprocess

import pytest

from support.fixed_ports import free_ports
from support.launch import Launch
from support.specs import TFLAUNCH
from support.waiting import PATIENCE

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.usefixtures("shared_import"),
]

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}

REDUCE = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
value = strategy.run(lambda: tf.constant(1.0))
print("sum", strategy.reduce("SUM", value, axis=None).numpy(), flush=True)
"""

CHIEF_ONLY = """
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0)
@tf.function
def add():
    total.assign_add(1.0)
for _ in range(10):
    coordinator.schedule(add)
coordinator.join()
print("total", total.numpy(), "on", total.device, flush=True)
"""


def test_tasks_run_by_hand_join_the_same_cluster(launch: Launch) -> None:
    """`eval "$(tflaunch env SPEC TASK)"` and the command: both tasks find each other."""
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    (launch.directory / "reduce.py").write_text(REDUCE)
    spec = launch.spec(cluster=cluster, command=["python", "reduce.py"], env=QUIET)
    script = f'eval "$(tflaunch env {spec} "$1")" && exec python reduce.py'
    by_hand = [
        subprocess.Popen(["sh", "-c", script, "sh", task], env=launch.env, stdout=subprocess.PIPE, text=True)
        for task in ("worker:0", "worker:1")
    ]
    launch.started += by_hand
    assert [task.communicate(timeout=PATIENCE)[0] for task in by_hand] == ["sum 2.0\n", "sum 2.0\n"]


@pytest.mark.thorough
def test_tflaunch_runs_the_standard_servers(launch: Launch) -> None:
    """`server: true`: a program with only the chief's code trains on tflaunch's own workers and ps.

    Where people read, TensorFlow's messages of several lines are hidden, too, though it writes all that it can.
    """
    servers = {"worker": {"server": True}, "ps": {"server": True}}
    command = ["python", "-c", CHIEF_ONLY]
    env = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    spec = launch.spec(cluster={"chief": 1, "worker": 2, "ps": 1}, roles=servers, command=command, env=env)
    said = subprocess.check_output(
        [str(TFLAUNCH), "up", str(spec)], env=launch.env, stderr=subprocess.STDOUT, text=True
    )
    (line,) = [line for line in said.splitlines() if not line.startswith("tflaunch: ")]
    assert line.startswith("chief:0  | total 10.0 on /job:ps"), said
    assert "SessionOptions" in (launch.run_directory() / "logs" / "ps-0.log").read_text()
