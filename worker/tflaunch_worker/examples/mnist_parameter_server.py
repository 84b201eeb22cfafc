"""Train a small network with ParameterServerStrategy and Keras fit.

With tflaunch:  tflaunch up cluster_specs/mnist_parameter_server.json
By hand:        TF_USE_LEGACY_KERAS=1 python -m tflaunch_worker.examples.mnist_parameter_server
                for every task, each with its own TF_CONFIG (chief, worker, ps). End the workers and ps
                when the chief is done: they never end by themselves.

The chief drives: it gives the next step to whichever worker is free, and the variables live on the ps. The
state is saved after every epoch; a job that is started again goes on with the next one.
"""

from __future__ import annotations

import sys

import tensorflow as tf

from tflaunch_worker import training
from tflaunch_worker.examples import arguments, digits, model


def main() -> int:
    """Run TF_CONFIG's task; the chief returns 0 if the network is accurate, else 1."""
    args = arguments.read(__doc__, 150, "the chief kills itself after the epoch in which step N is done")
    training.serve_if_server()
    model.require_tf_keras()
    model.require_servers()
    strategy = training.strategy()
    sizes = training.batch_sizes(strategy, per_replica=args.batch_size)

    data = digits.choose(args.data)  # only the chief loads data and sends the workers their pictures
    (x_train, y_train), test = digits.load(data)
    # The pictures are sent as part of the workers' graph, so no more than the training can use.
    steps = args.epochs * args.steps_per_epoch
    x_train, y_train = x_train[: steps * sizes.total], y_train[: steps * sizes.total]

    def pictures(_context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Return a worker's data: all pictures, in its own order because there is no seed."""
        dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(len(x_train)).repeat()
        return dataset.batch(sizes.per_worker).prefetch(tf.data.AUTOTUNE)

    with strategy.scope():
        network = model.build(steps)
    state = model.state_directory(args, "parameter-server", data)
    callbacks = training.callbacks(state, logs=args.logs)
    callbacks += model.crash_drill(network, args.crash_at_step, "epoch")
    network.fit(
        tf.keras.utils.experimental.DatasetCreator(pictures),
        epochs=args.epochs,
        steps_per_epoch=args.steps_per_epoch,
        callbacks=callbacks,
        verbose=0,
    )

    good = model.report(network, test, args.min_accuracy)
    model.forget(args, state)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
