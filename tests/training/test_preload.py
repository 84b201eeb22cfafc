"""`preload` with TensorFlow itself: forked workers train the same as workers that were started."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import psutil
import pytest

from support.launch import Launch, read_until, wait_for_end
from support.processes import command_of
from support.waiting import wait_until

pytestmark = pytest.mark.tensorflow

TRAIN = """
import os, time
import numpy as np, tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones", input_shape=(3,))])
    model.compile("sgd", "mse")
x = np.arange(48, dtype="float32").reshape(16, 3) / 48
data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True) * 2)).batch(4)
model.fit(data, epochs=2, verbose=0)
print("weights", [float(value) for value in model.get_weights()[0].ravel()], flush=True)
print("threads", tf.config.threading.get_intra_op_parallelism_threads(), len(os.listdir("/proc/self/task")) > 1)
"""
UNTIL_KILLED = TRAIN + "if os.environ['TFLAUNCH_ATTEMPT'] == '0': time.sleep(9999)\n"


def settings(workers: int, **more: Any) -> dict[str, Any]:
    return {
        "cluster": {"worker": workers},
        "command": ["python", "prog.py"],
        "env": {"TF_CPP_MIN_LOG_LEVEL": "2"},
        **more,
    }


def weights(text: str) -> list[str]:
    """Return what workers have learned."""
    return [line.partition("weights ")[2] for line in text.splitlines() if "weights " in line]


def zygotes(launch: Launch) -> list[psutil.Process]:
    """Return the processes that have imported modules for the tasks."""
    return [
        process for process in launch.survivors() if any("tflaunch-forkserver" in word for word in command_of(process))
    ]


def starts(launch: Launch) -> list[tuple[str, int, str]]:
    return [(r["task"], r["attempt"], r["preload"]) for r in launch.journal() if r["kind"] == "task_started"]


def threads(text: str) -> set[str]:
    return {line.partition("threads ")[2] for line in text.splitlines() if "threads " in line}


def test_forked_workers_train_the_same_and_again_after_a_restart(launch: Launch) -> None:
    """The weights equal those of workers that were started; a worker is killed: all restart without another import."""
    (launch.directory / "prog.py").write_text(TRAIN)
    started = launch.succeed("up", launch.spec(**settings(2)))
    (launch.home / "runs").rename(launch.directory / "earlier")
    (launch.directory / "prog.py").write_text(UNTIL_KILLED)
    running = launch.start("up", launch.spec(**settings(2, restart={"backoff": [0, 0]})), "--preload")
    read_until(running, "threads ", 2)
    (zygote,) = zygotes(launch)
    wait_until(lambda: all(task["shared_bytes"] for task in launch.status()["tasks"]), running)
    status = launch.status()
    assert [task["preload"] for task in status["tasks"]] == ["tensorflow"] * 2
    assert all(50_000_000 < task["shared_bytes"] <= task["rss_bytes"] for task in status["tasks"])
    assert "SHARED" in launch.run("ps").stdout
    os.kill(status["tasks"][1]["pid"], signal.SIGKILL)
    read_until(running, "weights ", 1)
    assert [process.pid for process in zygotes(launch)] == [zygote.pid]
    wait_for_end(running)
    assert sorted(starts(launch)) == [(f"worker:{n}", attempt, "tensorflow") for n in range(2) for attempt in range(2)]
    forked = launch.log("worker:0") + launch.log("worker:1")
    assert len(weights(forked)) == 4
    assert len(set(weights(started.stdout) + weights(forked))) == 1
    assert len(threads(started.stdout + forked)) == 1


@pytest.mark.thorough
@pytest.mark.usefixtures("shared_import")
def test_forked_tasks_have_devices_and_random_numbers_of_their_own(launch: Launch) -> None:
    """TensorFlow creates its process-specific state after the fork."""
    program = (
        "import json, numpy as np, tensorflow as tf\n"
        "from tensorflow.python.client import device_lib\n"
        "drawn = [float(np.random.rand()), float(tf.random.uniform(()))]\n"
        "print('drawn', json.dumps(drawn + [d.incarnation for d in device_lib.list_local_devices()]))\n"
    )
    spec = launch.spec(**settings(2, strategy="none", command=["python", "-c", program]))
    ended = launch.succeed("up", spec, "--preload")
    drawn = [json.loads(line.partition("drawn ")[2]) for line in ended.stdout.splitlines() if "drawn " in line]
    assert len(drawn) == 2
    assert not set(drawn[0]) & set(drawn[1])
    assert {preload for _, _, preload in starts(launch)} == {"tensorflow"}
