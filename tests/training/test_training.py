"""TensorFlow in a cluster that is joined by hand."""

import subprocess

import pytest

from support.fixed_ports import free_ports
from support.launch import Launch
from support.waiting import PATIENCE

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("shared_import")]

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}

REDUCE = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
value = strategy.run(lambda: tf.constant(1.0))
print("sum", strategy.reduce("SUM", value, axis=None).numpy(), flush=True)
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
