"""`tflaunch bench` measures real trainings of one and two workers."""

from __future__ import annotations

import json

import pytest

from support.launch import WARM, Launch
from tflaunch.client import runs

pytestmark = pytest.mark.tensorflow

PAUSE = 0.1
"""Seconds for which an input sleeps."""
PROGRAM = """
import time
import tensorflow as tf
from tflaunch_worker.training import progress
strategy = tf.distribute.MultiWorkerMirroredStrategy()
def batches():
    while True:
        time.sleep(PAUSE)
        yield 1.0
numbers = iter(tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec((), tf.float32)))
@tf.function
def total(number):
    return strategy.reduce("SUM", strategy.run(lambda: number), axis=None)
for step in range(10**6):
    total(next(numbers))
    progress.report(step + 1, examples=8 * strategy.num_replicas_in_sync)
""".replace("PAUSE", str(PAUSE))


@pytest.mark.usefixtures("shared_import")
def test_a_training_of_one_and_two_workers_is_compared(launch: Launch) -> None:
    (launch.directory / "train.py").write_text(PROGRAM)
    spec = launch.spec(cluster={"worker": 2}, command=["python", "train.py"], preload=launch.preload, warm=WARM)
    ended = launch.succeed("bench", spec, "--workers", "1,2", "--steps", "10", "--warm-up", "2", "--json")
    found = json.loads(ended.stdout)
    assert [run["examples"] for run in found["runs"]] == [8, 16]
    for run in found["runs"]:
        assert 0 < run["steps_per_second"] < 2 / PAUSE  # a report may be read late, but none counts twice
    alone, both = (run["steps_per_second"] for run in found["runs"])
    assert found["runs"][1]["efficiency"] == pytest.approx(both / alone, rel=0.01)
    assert not any(map(runs.is_live, (launch.home / "runs").iterdir()))
