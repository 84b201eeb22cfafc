"""Train a small network on all devices of a machine (MirroredStrategy, Keras fit).

With tflaunch:  tflaunch up cluster_specs/mnist_mirrored.json
By hand:        python -m tflaunch_worker.examples.mnist_mirrored

Without a GPU it splits the CPU into two devices, to show the same thing. It works with Keras 3 and with tf_keras,
and shows the callbacks that most trainings want.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tflaunch_worker import training
from tflaunch_worker.examples import arguments, digits, model, pipeline

if TYPE_CHECKING:
    from tflaunch_worker.examples.digits import Pictures

SEED = 20


def main() -> int:
    """Train and test the network; return 0 if it is accurate enough, else 1."""
    args = arguments.read(__doc__, 100, "this task kills itself after the epoch in which step N is done")
    if not tf.config.list_physical_devices("GPU"):
        halves = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], halves)
    strategy = training.strategy()
    sizes = training.batch_sizes(strategy, per_replica=args.batch_size)

    data = digits.choose(args.data)
    train, test = digits.load(data)
    dataset = pipeline.endless(pipeline.write_files(train), sizes.total, "off", SEED)

    model.seed(SEED)
    with strategy.scope():
        network = model.build()
    state = model.state_directory(args, "mirrored", data)
    state.mkdir(parents=True, exist_ok=True)
    best = str(state / "best.weights.h5")
    callbacks = [
        *training.callbacks(state, logs=args.logs),
        tf.keras.callbacks.ModelCheckpoint(best, "val_accuracy", save_best_only=True, save_weights_only=True),
        tf.keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1),
        tf.keras.callbacks.EarlyStopping("val_loss", patience=3),
        hardest_digit(test),
    ]
    callbacks += model.crash_drill(network, args.crash_at_step, "epoch")
    network.fit(
        dataset,
        epochs=args.epochs,
        steps_per_epoch=args.steps_per_epoch,
        validation_data=tf.data.Dataset.from_tensor_slices(test).batch(500),
        callbacks=callbacks,
        verbose=0,
    )

    network.load_weights(best)
    good = model.report(network, test, args.min_accuracy)
    model.forget(args, state)
    return 0 if good else 1


def hardest_digit(test: Pictures) -> Any:
    """Return a callback that prints each epoch's most often misclassified digit."""
    pictures, labels = test

    class HardestDigit(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            guesses = self.model(pictures[:500]).numpy().argmax(axis=1)
            mistaken = np.bincount(labels[:500][guesses != labels[:500]], minlength=10)
            print(f"hardest digit {mistaken.argmax()}, mistaken {mistaken.max()} times", flush=True)

    return HardestDigit()


if __name__ == "__main__":
    sys.exit(main())
