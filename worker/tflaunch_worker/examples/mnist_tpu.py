"""Train a small network on a TPU (TPUStrategy, Keras fit).

With tflaunch:  tflaunch up cluster_specs/mnist_tpu.json
By hand:        TPU_NAME=local python -m tflaunch_worker.examples.mnist_tpu

One process drives all cores of the TPU. Where there is none, it says so and ends with code 2.
"""

from __future__ import annotations

import sys

import tensorflow as tf

from tflaunch_worker import training
from tflaunch_worker.examples import arguments, digits, model

SEED = 20


def main() -> int:
    """Train and test the network; return 0 if it is accurate enough, else 1."""
    args = arguments.read(__doc__, 100, "this task kills itself after the epoch in which step N is done")
    try:
        strategy = training.strategy()
    except training.CannotTrain as reason:
        model.refuse(str(reason))
    sizes = training.batch_sizes(strategy, per_replica=args.batch_size)

    data = digits.choose(args.data)
    train, test = digits.load(data)
    dataset = tf.data.Dataset.from_tensor_slices(train).cache().shuffle(len(train[0]), seed=SEED).repeat()
    # The program is compiled for one shape, so the last batch must not be smaller.
    dataset = dataset.batch(sizes.total, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    with strategy.scope():
        network = model.build(args.epochs * args.steps_per_epoch)
    state = model.state_directory(args, "tpu", data)
    callbacks = training.callbacks(state, logs=args.logs)
    callbacks += model.crash_drill(network, args.crash_at_step, "epoch")
    network.fit(dataset, epochs=args.epochs, steps_per_epoch=args.steps_per_epoch, callbacks=callbacks, verbose=0)

    good = model.report(network, test, args.min_accuracy)
    model.forget(args, state)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
