"""`tflaunch_worker.training` with TensorFlow, in programs that tflaunch did not start."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from support.warm_python import StartWarm, WarmPython

pytestmark = pytest.mark.tensorflow

KERASES = pytest.mark.parametrize(
    "legacy", [pytest.param("0", marks=pytest.mark.thorough), "1"], ids=["Keras 3", "tf_keras"]
)

ALONE = json.dumps({"cluster": {"worker": ["localhost:0"]}, "task": {"type": "worker", "index": 0}})
SERVERS = {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]}
A_WORKER = json.dumps({"cluster": SERVERS, "task": {"type": "worker", "index": 0}})
AN_EVALUATOR = json.dumps({"cluster": SERVERS, "task": {"type": "evaluator", "index": 0}})

SHOW = """
import tensorflow as tf
from tflaunch_worker import training
{before}
try:
    strategy = training.strategy()
    print(type(strategy).__name__, strategy.num_replicas_in_sync)
except training.CannotTrain as reason:
    print(reason)
"""
TWO_DEVICES = """
halves = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], halves)
"""

FIT = """
import sys
import numpy as np
import tensorflow as tf
from tflaunch_worker import training

rate, epochs, state = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
network = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1)])
network.compile(tf.keras.optimizers.SGD(rate), "mse")
x, y = np.random.rand(80, 3) + 1, np.ones((80, 1))
callbacks = training.callbacks(training.checkpoint_dir(state), save_every=4)
network.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks)
print("steps", int(network.optimizer.iterations.numpy()))
"""


def run(python: WarmPython, program: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return python.run(program, ["-c", *arguments], env={**python.env, **env})


@pytest.mark.parametrize(
    ("before", "env", "said"),
    [
        ("", {}, r"_?DefaultDistributionStrategy 1"),
        ("", {"TF_CONFIG": ALONE}, r"CollectiveAllReduceStrategy 1|MultiWorkerMirroredStrategy 1"),
        ("", {"TF_CONFIG": AN_EVALUATOR}, r"_?DefaultDistributionStrategy 1"),
        ("", {"TF_CONFIG": A_WORKER}, r"worker:0 takes its work from the chief: call serve_if_server\(\) first\."),
        ("", {"TFLAUNCH_STRATEGY": "none"}, r"_?DefaultDistributionStrategy 1"),
        (TWO_DEVICES, {"TFLAUNCH_STRATEGY": "mirrored"}, r"MirroredStrategy 2"),
        ("", {"TPU_NAME": "nowhere-1"}, r"There is no TPU here \(.+\): .*set TPU_NAME to the name of a TPU\."),
        (
            "tf.constant(1)",
            {"TF_CONFIG": ALONE.replace('["localhost:0"]', '["localhost:0", "localhost:1"]')},
            r"TensorFlow has run something before strategy\(\): .*",
        ),
    ],
    ids=["nothing", "one worker", "evaluator", "server", "none", "mirrored", "tpu", "too late"],
)
def test_the_environment_says_the_strategy(warm_python: StartWarm, before: str, env: dict[str, str], said: str) -> None:
    """One of TensorFlow's strategies, or a sentence with a remedy."""
    ended = run(warm_python("1"), SHOW.format(before=before), **env)
    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(said, ended.stdout.strip()), ended.stdout


@KERASES
def test_fit_goes_on_from_what_it_saved(warm_python: StartWarm, tmp_path: Path, legacy: str) -> None:
    """tf_keras from the very step, Keras 3 from the end of the epoch."""
    place = str(tmp_path / "state")
    first = run(warm_python(legacy), FIT, "0.01", "2", place)
    assert first.returncode == 0, first.stderr
    assert "resumed" not in first.stdout
    assert re.search(r"^epoch 2 of 2: .*loss [\d.e-]+", first.stdout, re.MULTILINE)
    second = run(warm_python(legacy), FIT, "0.01", "3", place)
    assert second.stdout.startswith("resumed at step 20, steps done again: 0\nepoch 3 of 3: ")
    assert second.stdout.endswith("steps 30\n")


@KERASES
def test_a_loss_that_is_no_number_ends_the_program(warm_python: StartWarm, tmp_path: Path, legacy: str) -> None:
    """With an error, before the broken network is saved: the next attempt resumes from a good one."""
    place = str(tmp_path / "state")
    ended = run(warm_python(legacy), FIT, "1e30", "2", place)
    assert ended.returncode == 1
    assert "the loss is not a number any more: check the learning rate" in ended.stderr
    assert not [path for path in Path(place).rglob("*") if "ckpt" in path.name or "weights" in path.name]


def test_a_batch_is_stated(warm_python: StartWarm) -> None:
    """Whole and in shares; a size that cannot be divided is refused."""
    program = SHOW.format(before=TWO_DEVICES) + (
        "print(*training.batch_sizes(strategy, total=64))\n"
        "try:\n    training.batch_sizes(strategy, total=63)\n"
        "except training.CannotTrain as reason:\n    print(reason)\n"
    )
    ended = run(warm_python("1"), program, TFLAUNCH_STRATEGY="mirrored")
    assert ended.stdout.splitlines()[1:] == [
        "batch: 64 in a step, 32 on each of 2 devices",
        "64 64 32",
        "A batch of 63 cannot be shared by 2 replicas: take 62, for instance.",
    ]
