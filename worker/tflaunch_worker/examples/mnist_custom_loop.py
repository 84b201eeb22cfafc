"""Train a small network with MultiWorkerMirroredStrategy, in a loop of our own.

With tflaunch:     tflaunch up cluster_specs/mnist_custom_loop.json
By hand, alone:    python -m tflaunch_worker.examples.mnist_custom_loop

Keras 3 cannot `fit` on several workers (TensorFlow 2.21), but its networks and optimizers work in a loop, and so do
those of tf_keras. A step adds up the gradients of several small batches before the workers add up theirs, so that a
worker's memory need not hold a whole batch. When TERM comes to any worker, all save after the same step and exit
with 42; started again, they go on from there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tflaunch_worker import training
from tflaunch_worker.examples import arguments, digits, model, pipeline

if TYPE_CHECKING:
    from collections.abc import Callable

SAVE_EVERY = 10  # steps
PARTS = 2  # small batches in the share of one replica
SEED = 20


def main() -> int:
    """Train and test the network; return 0 if it is accurate enough, else 1."""
    args = arguments.read(__doc__, 100, "worker 1 kills itself after step N")
    strategy = training.strategy()
    sizes = training.batch_sizes(strategy, per_replica=args.batch_size)
    data = digits.choose(args.data, lambda mine: all(training.everyone(strategy, mine)))
    train, test = digits.load(data)
    dataset = pipeline.endless(pipeline.write_files(train), sizes.total, "data", SEED)

    steps = args.epochs * args.steps_per_epoch
    model.seed(SEED)
    with strategy.scope():
        network = model.build(steps)
        network.optimizer.build(network.trainable_variables)
        step = tf.Variable(0, dtype=tf.int64, trainable=False)
    train_step = make_step(strategy, network, sizes)

    state = model.state_directory(args, "custom-loop", data)
    saved = state / "saved"
    checkpoint = tf.train.Checkpoint(network=network, optimizer=network.optimizer, step=step)
    handler = training.preemption(checkpoint, saved)
    # All save, since reading a variable may need all of them; only the chief's checkpoint is kept.
    manager = tf.train.CheckpointManager(checkpoint, training.save_path(saved), max_to_keep=2)
    if step.numpy():
        print(f"resumed at step {step.numpy()}", flush=True)
    # The order has a fixed seed, so the batches of the steps that are done are the first ones.
    batches = iter(strategy.experimental_distribute_dataset(dataset.skip(int(step.numpy()))))
    while (done := int(step.numpy())) < steps:
        loss = handler.run(train_step, next(batches), step)
        done += 1
        training.report(done, epochs=args.epochs, steps_per_epoch=args.steps_per_epoch, loss=loss)
        if done % SAVE_EVERY == 0:
            manager.save()
        if done % args.steps_per_epoch == 0 and training.is_chief():
            print(f"epoch {done // args.steps_per_epoch} of {args.epochs}: loss {float(loss):.4g}", flush=True)
        if training.this_task().name == "worker:1":
            model.crash_at(args.crash_at_step, done)

    good = model.report(network, test, args.min_accuracy)
    training.barrier(strategy)
    if training.is_chief():
        model.forget(args, state)
    return 0 if good else 1


def make_step(
    strategy: tf.distribute.Strategy, network: tf.keras.Model, sizes: training.BatchSizes
) -> Callable[..., tf.Tensor]:
    """Return the function for a step on all replicas, which returns the batch's loss."""

    def on_replica(pictures: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        loss, gradients = 0.0, [tf.zeros_like(variable) for variable in network.trainable_variables]
        for part in range(PARTS):
            with tf.GradientTape() as tape:
                guesses = network(pictures[part::PARTS], training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels[part::PARTS], guesses)
                # Since losses are divided by the size of the whole batch, those of all parts need only be summed.
                part_loss = tf.nn.compute_average_loss(losses, global_batch_size=sizes.total)
            more = tape.gradient(part_loss, network.trainable_variables)
            gradients = [one + other for one, other in zip(gradients, more, strict=True)]
            loss += part_loss
        tf.debugging.assert_all_finite(loss, "the loss is not a number any more")
        network.optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))  # sums over all
        return loss

    def train_step(batch: Any, step: tf.Variable) -> tf.Tensor:
        losses = strategy.run(on_replica, args=batch)
        step.assign_add(1)
        return strategy.reduce("SUM", losses, axis=None)

    compiled: Callable[..., tf.Tensor] = tf.function(train_step)
    return compiled


if __name__ == "__main__":
    sys.exit(main())
