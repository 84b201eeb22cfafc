"""Train a small network with parameter servers (ParameterServerStrategy, Keras fit).

With tflaunch:  tflaunch up cluster_specs/mnist_parameter_server.json
By hand:        TF_USE_LEGACY_KERAS=1 python -m tflaunch_worker.examples.mnist_parameter_server
                for every task, each with its own TF_CONFIG (chief, worker, ps). End the workers and ps
                when the chief is done: they never end by themselves.

The chief drives: it gives the next step to whichever worker is free, and the variables live on the ps. The
state is saved after every epoch; a job that is started again goes on with the next one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tflaunch_worker.examples import arguments
from tflaunch_worker.training import progress, server

if TYPE_CHECKING:
    import tensorflow as tf


def main() -> int:
    """Be the task that TF_CONFIG names; the chief returns 0 when the network is good enough, else 1."""
    args = arguments.read(__doc__, 150, "the chief kills itself after the epoch in which step N is done")
    import tensorflow as tf

    from tflaunch_worker.examples import digits, model

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if not {"chief", "worker", "ps"} <= set(resolver.cluster_spec().jobs):
        model.refuse("This program needs a TF_CONFIG with chief, worker and ps: see --help.")
    if resolver.task_type in ("worker", "ps"):
        server.serve()
    model.require_tf_keras()
    strategy = tf.distribute.ParameterServerStrategy(resolver)

    data = digits.choose(args.data)  # by the chief alone, which sends the workers their pictures
    (x_train, y_train), test = digits.load(data)
    # They travel as part of the workers' graph: no more of them than the training can look at.
    steps = args.epochs * args.steps_per_epoch
    x_train, y_train = x_train[: steps * args.batch_size], y_train[: steps * args.batch_size]

    def pictures(_context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Make the data of one worker: all pictures, in an order of its own because there is no seed."""
        dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(len(x_train)).repeat()
        return dataset.batch(args.batch_size).prefetch(tf.data.AUTOTUNE)

    with strategy.scope():
        network = model.build(steps)
    state = model.state_directory(args, "parameter-server", data)
    callbacks = [*model.keep_state(network, state, "epoch"), progress.callback()]  # Keras tells us of epochs only
    if args.crash_at_step:
        drill = model.crash_drill(network, args.crash_at_step)
        callbacks.append(tf.keras.callbacks.LambdaCallback(on_epoch_end=drill))
    network.fit(
        tf.keras.utils.experimental.DatasetCreator(pictures),
        epochs=args.epochs,
        steps_per_epoch=args.steps_per_epoch,
        callbacks=callbacks,
        verbose=2,
    )

    good = model.report(network, test, args.min_accuracy)
    model.forget(state)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
