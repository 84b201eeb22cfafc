"""Train a small network on several workers with Keras 3 and JAX (DataParallel).

With tflaunch:     tflaunch up cluster_specs/mnist_jax.json
By hand, alone:    KERAS_BACKEND=jax python -m tflaunch_worker.examples.mnist_jax

This is the way in which `fit` of Keras 3 works on several hosts. With `"strategy": "jax"`, tflaunch sets the variables
that keras.distribution.initialize() reads. TensorFlow reads the data only.
"""

from __future__ import annotations

import importlib.util
import os
import sys

from tflaunch_worker import training
from tflaunch_worker.examples import arguments
from tflaunch_worker.training import progress

SEED = 20


def main() -> int:
    """Train and test the network; return 0 if it is accurate enough, else 1."""
    args = arguments.parser_of(__doc__, 100).parse_args()
    if importlib.util.find_spec("jax") is None:
        print("This program needs JAX: pip install jax.", file=sys.stderr, flush=True)
        return 2
    import keras
    import numpy as np

    if "KERAS_DISTRIBUTION_JOB_ADDRESSES" in os.environ:
        keras.distribution.initialize()
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    keras.utils.set_random_seed(SEED)
    import tensorflow as tf
    from jax.experimental import multihost_utils

    from tflaunch_worker.examples import digits, model

    def every_task(mine: bool) -> bool:
        return bool(np.all(multihost_utils.process_allgather(np.array(mine))))

    train, test = digits.load(digits.choose(args.data, every_task))
    steps = args.epochs * args.steps_per_epoch
    dataset = tf.data.Dataset.from_tensor_slices(train).shuffle(10_000, seed=SEED).repeat()
    dataset = dataset.batch(args.batch_size * training.workers(), drop_remainder=True)  # which DataParallel shares out
    network = model.build(steps)
    report = progress.callback()
    network.fit(dataset, epochs=args.epochs, steps_per_epoch=args.steps_per_epoch, callbacks=[report], verbose=2)
    keras.distribution.set_distribution(None)  # from here on, each worker is alone
    return 0 if model.report(network, test, args.min_accuracy) else 1


if __name__ == "__main__":
    sys.exit(main())
