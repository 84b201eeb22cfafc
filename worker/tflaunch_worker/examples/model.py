"""What the examples share: the network, state kept over restarts, and the result."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import tensorflow as tf

from tflaunch_worker import training

if TYPE_CHECKING:
    import argparse

    from tflaunch_worker.examples.digits import Pictures


def refuse(sentence: str) -> NoReturn:
    """Print a sentence for the user and exit with code 2: nothing was trained."""
    print(sentence, file=sys.stderr, flush=True)
    raise SystemExit(2)


def require_tf_keras() -> None:
    """Refuse Keras 3: multi-worker strategies fail in `fit`, backups ignore the chief."""
    try:
        if not hasattr(tf.keras, "version"):  # a function that exists since Keras 3
            return
    except ImportError:  # TF_USE_LEGACY_KERAS is set, but tf_keras is not installed
        pass
    refuse(
        "This program needs tf_keras, because Keras 3 cannot train on several workers: "
        "pip install tf_keras, and set TF_USE_LEGACY_KERAS=1 (tflaunch sets it by itself)."
    )


def require_servers() -> None:
    """Refuse to train without parameter servers."""
    task = training.this_task()
    if not (task.has_servers and task.count("chief") and task.count("worker")):
        refuse("This program needs a TF_CONFIG with chief, worker and ps: see --help.")


def seed(number: int) -> None:
    """Seed the initial weights, so that they are the same on all tasks, in every run.

    `tf.keras.utils.set_random_seed` of tf_keras 2.16 to 2.18 would break all layers created after it on Python 3.12,
    with "TypeError: 'float' object cannot be interpreted as an integer".
    """
    random.seed(number)
    tf.random.set_seed(number)


def build(steps: int | None = None) -> tf.keras.Model:
    """Return the compiled network, created in the current strategy scope.

    With `steps`, the total number of steps, the learning rate falls to zero, so that the last steps cannot spoil what
    the network has learnt; without it, callbacks may change the rate.
    """
    layers = [
        tf.keras.layers.Input((28, 28, 1)),
        tf.keras.layers.Conv2D(16, 3, activation="relu"),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Conv2D(32, 3, activation="relu"),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10),
    ]
    network = tf.keras.Sequential(layers)
    network.compile(
        optimizer=tf.keras.optimizers.Adam(falling_rate(steps) if steps else 2e-3),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return network


def falling_rate(steps: int) -> tf.keras.optimizers.schedules.LearningRateSchedule:
    """Return a learning rate that falls to zero within this number of steps."""
    return tf.keras.optimizers.schedules.CosineDecay(4e-3, steps)


def state_directory(args: argparse.Namespace, program: str, data: str) -> Path:
    """Return the directory of this run's state, one for each program and data set."""
    return Path(training.checkpoint_dir(args.state_dir), f"{program}-{data}")


def last_saved(state: Path) -> int:
    """Return the number of the saved checkpoint: 0 for none, -1 without the directory."""
    checkpoint = tf.train.latest_checkpoint(str(state / "chief"))
    return int(checkpoint.rpartition("-")[2]) if checkpoint else -int(not state.is_dir())


def forget(args: argparse.Namespace, state: Path) -> None:
    """Remove a state that is not needed, and directories above it that are then empty."""
    shutil.rmtree(state, ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty: it has other content
        for directory in dict.fromkeys((state.parent, Path(args.state_dir).absolute())):
            directory.rmdir()


def crash_drill(network: tf.keras.Model, step: int | None, moment: str) -> list[Any]:
    """Return the callback that kills this task after `step` steps; [] for None.

    `moment`: "epoch" or "step", after which it checks.
    """

    def on_end(_index: int, _logs: object) -> None:
        crash_at(step, int(network.optimizer.iterations.numpy()))

    if step is None:
        return []
    when = {"epoch": "on_epoch_end", "step": "on_train_batch_end"}[moment]
    return [tf.keras.callbacks.LambdaCallback(**{when: on_end})]


def crash_at(step: int | None, done: int) -> None:
    """Kill this task once `step` steps are done, in the first attempt only."""
    if step is not None and done >= step and os.environ.get("TFLAUNCH_ATTEMPT", "0") == "0":
        print(f"fault drill: killed at step {done}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def report(network: tf.keras.Model, test: Pictures, minimum: float) -> bool:
    """Print accuracy and the weights' digest; return whether it is accurate enough.

    It tests a copy, outside the strategy, so that no task waits for another one here.
    """
    weights = network.get_weights()
    copy = tf.keras.models.clone_model(network)
    copy.set_weights(weights)
    pictures, labels = test
    guesses = copy.predict(pictures, batch_size=500, verbose=0).argmax(axis=1)
    accuracy = float(np.mean(guesses == labels))
    if accuracy < minimum:
        print(f"the test accuracy is below {minimum}", file=sys.stderr, flush=True)
    print(f"test accuracy {accuracy:.4f}", flush=True)
    digest = hashlib.sha256(b"".join(array.tobytes() for array in weights)).hexdigest()
    sys.stdout.write(f"weights sha256 {digest}\n")  # one write: the tasks of a rendered script share their output
    return accuracy >= minimum
