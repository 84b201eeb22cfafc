"""Train a small network on several workers in step (MultiWorkerMirroredStrategy, Keras fit).

With tflaunch:     tflaunch up cluster_specs/mnist_multi_worker.json
By hand, alone:    TF_USE_LEGACY_KERAS=1 python -m tflaunch_worker.examples.mnist_multi_worker
By hand, several:  the same for every worker, each with its own TF_CONFIG, all within the hour.

It shows what such a program needs: one order of the data on all workers and a share for each, a batch that
grows with the cluster, and state in a directory that all workers share. When one worker dies, all must be
started again; they go on from the last saved step.
"""

from __future__ import annotations

import sys

from tflaunch_worker.examples import arguments
from tflaunch_worker.training import progress

SAVE_EVERY = 10  # steps
SEED = 20  # the same on all workers: each takes its share out of the same global batch


def main() -> int:
    """Train, test, and tell how good the network is: 0 when it is good enough, else 1."""
    args = arguments.read(__doc__, 100, "worker 1 kills itself after step N")
    import tensorflow as tf

    from tflaunch_worker.examples import digits, model

    model.require_tf_keras()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster = resolver.cluster_spec()
    tasks = sum(cluster.num_tasks(job) for job in cluster.jobs if job in ("chief", "worker")) or 1
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    leads = strategy.extended.should_checkpoint  # the one task whose checkpoints are kept

    def everyone(mine: int) -> list[int]:
        """Tell all tasks `mine`, and hear theirs; all must call it together."""
        values = strategy.experimental_distribute_values_from_function(lambda _: tf.constant([int(mine)]))
        return [int(value) for value in strategy.gather(values, axis=0)]

    data = digits.choose(args.data, lambda mine: all(everyone(mine)))
    (x_train, y_train), test = digits.load(data)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = (
        tf.data.Dataset.from_tensor_slices((x_train, y_train))
        .cache()
        .shuffle(len(x_train), seed=SEED)
        .repeat()  # so that no worker can run out of data before the others, which would then hang
        .batch(args.batch_size * tasks)
        .prefetch(tf.data.AUTOTUNE)
        .with_options(options)
    )

    state = model.state_directory(args, "multi-worker", data)
    if leads:
        state.mkdir(parents=True, exist_ok=True)
    everyone(0)  # now it is there for all who share it
    if len(set(everyone(model.last_saved(state)))) > 1:
        model.refuse("The tasks do not see the same --state-dir, so they could not go on from the same step.")

    tf.keras.utils.set_random_seed(SEED)
    with strategy.scope():
        network = model.build(args.epochs * args.steps_per_epoch)
    callbacks = [*model.keep_state(network, state, SAVE_EVERY), progress.callback()]
    if args.crash_at_step and (resolver.task_type, resolver.task_id) == ("worker", 1):
        drill = model.crash_drill(network, args.crash_at_step)
        callbacks.append(tf.keras.callbacks.LambdaCallback(on_train_batch_end=drill))
    network.fit(
        dataset,
        epochs=args.epochs,
        steps_per_epoch=args.steps_per_epoch,
        callbacks=callbacks,
        verbose=2 if leads else 0,
    )

    good = model.report(network, test, args.min_accuracy)
    model.forget(state, "chief" if leads else f"workertemp_{resolver.task_id}")  # names that tf_keras gives
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
