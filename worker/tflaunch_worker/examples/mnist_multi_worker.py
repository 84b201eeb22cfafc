"""Train a small network with MultiWorkerMirroredStrategy and Keras fit.

With tflaunch:     tflaunch up cluster_specs/mnist_multi_worker.json
By hand, alone:    TF_USE_LEGACY_KERAS=1 python -m tflaunch_worker.examples.mnist_multi_worker
By hand, several:  the same for every worker, each with its own TF_CONFIG, all within the hour.

It shows what such a program needs: one order of the data on all workers and a share for each, a batch that
grows with the cluster, and state in a directory that all workers share. When one worker dies, all must be
started again; they go on from the last saved step.
"""

from __future__ import annotations

import sys

import tensorflow as tf

from tflaunch_worker import training
from tflaunch_worker.examples import arguments, digits, model, pipeline

SAVE_EVERY = 10  # steps
SEED = 20  # the same on all workers, since each takes its share of the same global batch


def main() -> int:
    """Train and test the network; return 0 if it is accurate enough, else 1."""
    args = arguments.read(__doc__, 100, "worker 1 kills itself after step N")
    model.require_tf_keras()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    sizes = training.batch_sizes(strategy, per_replica=args.batch_size)

    data = digits.choose(args.data, lambda mine: all(training.everyone(strategy, mine)))
    train, test = digits.load(data)
    dataset = pipeline.endless(pipeline.write_files(train), sizes.total, "file", SEED)

    state = model.state_directory(args, "multi-worker", data)
    if training.is_chief():
        state.mkdir(parents=True, exist_ok=True)
    training.barrier(strategy)  # from here on, all tasks that share the directory see it
    if len(set(training.everyone(strategy, model.last_saved(state)))) > 1:
        model.refuse("The tasks do not see the same --state-dir, so they could not go on from the same step.")

    model.seed(SEED)
    with strategy.scope():
        network = model.build(args.epochs * args.steps_per_epoch)
    callbacks = training.callbacks(state, save_every=SAVE_EVERY, logs=args.logs)
    if training.this_task().name == "worker:1":
        callbacks += model.crash_drill(network, args.crash_at_step, "step")
    network.fit(dataset, epochs=args.epochs, steps_per_epoch=args.steps_per_epoch, callbacks=callbacks, verbose=0)

    good = model.report(network, test, args.min_accuracy)
    training.barrier(strategy)
    if training.is_chief():
        model.forget(args, state)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
