"""A worker whose input is slow is named with its reason while it trains, and one that is not is not."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from support.launch import PATIENCE, WARM, Launch

pytestmark = pytest.mark.tensorflow

PROGRAM = """\
import os, sys, time
import tensorflow as tf
pause = float(sys.argv[1]) if os.environ["TFLAUNCH_TASK"] == "worker:1" else 0.0
strategy = tf.distribute.MultiWorkerMirroredStrategy()
def examples():
    while True:
        time.sleep(pause)
        yield tf.ones((1000,))
data = tf.data.Dataset.from_generator(examples, output_signature=tf.TensorSpec((1000,))).repeat()
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
batches = iter(data.with_options(options))
with strategy.scope():
    weights = tf.Variable(tf.zeros((1000,)))
@tf.function
def step(batch):
    def train(batch):
        weights.assign_sub(tf.distribute.get_replica_context().all_reduce("sum", batch - weights))
    strategy.run(train, args=(batch,))
for number in range(100_000):
    batch = next(batches)
    time.sleep(0.1)
    step(batch)
    if number == 3:
        print("trains", flush=True)
"""
PAUSE_LINE = PROGRAM.splitlines().index("        time.sleep(pause)") + 1


def test_a_worker_with_a_slow_input_is_named(home: Launch, tmp_path: Path) -> None:
    """With its share of the time, and the line where its generator sleeps; the other one waits for it."""
    home.directory = tmp_path
    (tmp_path / "train.py").write_text(PROGRAM)
    spec = home.spec(
        cluster={"worker": 2},
        command=["python", "train.py", "0.4"],
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
        warm=WARM,
    )
    started = home.run("up", "-d", "--name", "late", spec)
    assert started.returncode == 0, started.stderr
    home.wait_for_log("worker:1", "trains", run="late")
    end = time.monotonic() + PATIENCE
    place = f"train.py, line {PAUSE_LINE}"
    while place not in ((late := json.loads(home.run("ps", "--json", "late").stdout)["tasks"])[1]["late_reason"] or ""):
        assert time.monotonic() < end, late
    assert late[1]["late_reason"] == f"it waits for its input: its generator sleeps ({place})"
    assert late[1]["late_share"] > 0.2
    assert (late[0]["waits_for"], late[0]["late_reason"], late[1]["waits_for"]) == ("worker:1", None, None)
    assert "WAITS FOR" in home.run("ps", "late").stdout
    records = [json.loads(line) for line in home.run("events", "late", "--json").stdout.splitlines()]
    # The other one may have been late for a while, if it stood still on a busy machine.
    assert "worker:1" in [record["task"] for record in records if record["kind"] == "task_fell_behind"]
    home.run("down", "--grace", "0s", "late")
