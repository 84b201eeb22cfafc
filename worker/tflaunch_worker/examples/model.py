"""What the example programs share: the network, the state kept over restarts, and the result."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from tflaunch_worker.examples.digits import Pictures


def refuse(sentence: str) -> NoReturn:
    """End with a sentence for the user and exit code 2: nothing was trained."""
    print(sentence, file=sys.stderr, flush=True)
    raise SystemExit(2)


def require_tf_keras() -> None:
    """Refuse Keras 3: its `fit` fails under both multi-worker strategies, and its backups know no chief."""
    try:
        if not hasattr(tf.keras, "version"):  # a function that came with Keras 3
            return
    except ImportError:  # TF_USE_LEGACY_KERAS is set, but tf_keras is not installed
        pass
    refuse(
        "This program needs tf_keras, because Keras 3 cannot train on several workers: "
        "pip install tf_keras, and set TF_USE_LEGACY_KERAS=1 (tflaunch sets it by itself)."
    )


def build(steps: int) -> tf.keras.Model:
    """Make the network, compiled for a training of so many steps, in the current strategy scope."""
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
    # The rate falls to zero, so that the last steps cannot spoil what the network has learnt.
    rate = tf.keras.optimizers.schedules.CosineDecay(4e-3, steps)
    network.compile(
        optimizer=tf.keras.optimizers.Adam(rate),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return network


def state_directory(args: argparse.Namespace, program: str, data: str) -> Path:
    """Name the directory of this run's state; another program or other data would not go on from it.

    The path is absolute because parameter servers write their part of a checkpoint themselves.
    """
    return Path(args.state_dir, os.environ.get("TFLAUNCH_RUN", "by-hand"), f"{program}-{data}").absolute()


def keep_state(network: tf.keras.Model, state: Path, save_freq: int | str) -> list[Any]:
    """Make the callbacks that restore the state when the training begins and save it on the way.

    They leave it there at the end, where BackupAndRestore would remove it: a task that fails in the test
    need not train again.
    """

    def tell(_logs: object) -> None:
        if step := int(network.optimizer.iterations.numpy()):
            print(f"resumed at step {step}", flush=True)

    return [
        tf.keras.callbacks.BackupAndRestore(str(state), save_freq=save_freq, delete_checkpoint=False),
        tf.keras.callbacks.LambdaCallback(on_train_begin=tell),
    ]


def last_saved(state: Path) -> int:
    """Give the number of the checkpoint in the state: 0 for none, -1 when there is no such directory."""
    checkpoint = tf.train.latest_checkpoint(str(state / "chief"))
    return int(checkpoint.rpartition("-")[2]) if checkpoint else -int(not state.is_dir())


def forget(state: Path, mine: str = "chief") -> None:
    """Remove this task's part of the state; the last task thereby also removes the directories around it."""
    shutil.rmtree(state / mine, ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty: another task is not done, or there is something else
        for directory in (state, *state.parents[:2]):
            directory.rmdir()


def crash_drill(network: tf.keras.Model, step: int) -> Callable[[int, object], None]:
    """Make a callback function that kills this task, as a fault would, once `step` steps are done."""

    def on_end(_index: int, _logs: object) -> None:
        done = int(network.optimizer.iterations.numpy())
        if done >= step and os.environ.get("TFLAUNCH_ATTEMPT", "0") == "0":
            print(f"fault drill: killed at step {done}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    return on_end


def report(network: tf.keras.Model, test: Pictures, minimum: float) -> bool:
    """Print the accuracy and the weights' digest, and say whether the accuracy will do.

    A copy is tested, outside the strategy, so that no task waits for another one here.
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
    print("weights sha256", hashlib.sha256(b"".join(array.tobytes() for array in weights)).hexdigest(), flush=True)
    return accuracy >= minimum
