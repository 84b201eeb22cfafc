"""Progress of real training, with both Keras versions, with and without a reader."""

import json
import os
from pathlib import Path

import pytest

from support.warm_python import StartWarm, WarmPython
from tflaunch_worker.agent.last_output import LastOutput

pytestmark = pytest.mark.tensorflow

KERASES = pytest.mark.parametrize(
    "legacy", [pytest.param("0", marks=pytest.mark.thorough), "1"], ids=["Keras 3", "tf_keras"]
)

FIT = """
import numpy as np
import tensorflow as tf
from tflaunch_worker.training import progress

network = tf.keras.Sequential([tf.keras.layers.Dense(1)])
network.compile("sgd", "mse", metrics=["mae"])
x, y = np.ones((64, 3)), np.zeros((64, 1))
for _ in range(2):
    network.fit(x, y, batch_size=8, epochs=3, validation_data=(x, y), verbose=0, callbacks=[progress.callback()])
print(tf.keras.Model.__module__)
"""

SHOWN = """
import sys
import numpy as np
import tensorflow as tf

network = tf.keras.Sequential([tf.keras.layers.Dense(1)])
network.compile("sgd", "mse")
x, y, verbose = np.ones((640, 3)), np.zeros((640, 1)), int(sys.argv[1])
for _ in range(3):
    print("loss", network.fit(x, y, verbose=verbose).history["loss"][-1])
    network.evaluate(x[:320], y[:320], verbose=verbose)
network.fit(x, y, epochs=2, verbose=verbose)
network.evaluate(x, y * 9, verbose=verbose)
"""


def fit(python: WarmPython, **env: str) -> str:
    """Train briefly with these variables and return the output."""
    ended = python.run(FIT, ["-c"], env={**python.env, **env})
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@KERASES
def test_keras_tells_steps_epochs_and_metrics(warm_python: StartWarm, tmp_path: Path, legacy: str) -> None:
    """The step is the optimizer's, so it continues where an earlier training ended."""
    path = tmp_path / "progress"
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    assert fit(warm_python(legacy), TFLAUNCH_PROGRESS=str(path)).startswith("tf_keras" if legacy == "1" else "keras.")
    lines = [json.loads(line) for line in os.read(pipe, 1 << 20).splitlines()]
    os.close(pipe)
    last = lines[-1]
    assert [last[name] for name in ("step", "epoch", "epochs", "steps_per_epoch")] == [48, 3, 3, 8]
    assert {"loss", "mae", "val_loss", "val_mae"} <= set(last["metrics"])
    assert all(isinstance(value, float) for value in last["metrics"].values())
    steps = [line["step"] for line in lines]
    assert steps == sorted(steps)
    assert 1 <= steps[0] < 24


@pytest.mark.parametrize("verbose", ["1", pytest.param("2", marks=pytest.mark.thorough)])
@KERASES
def test_keras_shows_steps_of_fits_and_not_of_evaluations(warm_python: StartWarm, legacy: str, verbose: str) -> None:
    """A `fit` of one epoch shows no "Epoch 1/1"; an evaluation shows a bar like it."""
    python = warm_python(legacy)
    ended = python.run(SHOWN, ["-c", verbose], env=python.env)
    assert ended.returncode == 0, ended.stderr
    output = LastOutput()
    loops, epoch, rest = ended.stdout.encode().partition(b"Epoch 1/2")
    output.note(loops)
    known = output.progress()
    assert (known["step"], known["epoch"], known["steps_per_epoch"]) == (60, 3, 20), loops
    loss = float(loops.rpartition(b"\nloss ")[2].split()[0])
    assert known["metrics"] == {"loss": pytest.approx(loss, rel=1e-2, abs=1e-4)}
    output.note(epoch + rest)
    known = output.progress()
    assert (known["step"], known["epoch"], known["epochs"]) == (40, 2, 2)
