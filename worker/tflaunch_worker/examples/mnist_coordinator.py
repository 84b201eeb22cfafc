"""Train a small network with parameter servers in our own ClusterCoordinator loop.

With tflaunch:  tflaunch up cluster_specs/mnist_coordinator.json
By hand:        python -m tflaunch_worker.examples.mnist_coordinator
                for every task, each with its own TF_CONFIG (chief, worker, ps, and evaluator outside the cluster).
                End the workers and ps when the chief is done: they never end by themselves.

The chief schedules steps, which run on whichever worker is free, and saves after every epoch. The evaluator tests each
checkpoint while the training goes on. All must see the same --state-dir.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tflaunch_worker import training
from tflaunch_worker.examples import arguments, digits, model

if TYPE_CHECKING:
    import argparse

PATIENCE = 600  # seconds for which the evaluator waits for the next checkpoint


def main() -> int:
    """Run TF_CONFIG's task; the chief returns 0 if the network is accurate, else 1."""
    args = arguments.read(__doc__, 150, "the chief kills itself after the epoch in which step N is done")
    training.serve_if_server()
    return evaluate(args) if training.this_task().role == "evaluator" else train(args)


def train(args: argparse.Namespace) -> int:
    """Control the training as the chief."""
    model.require_servers()
    strategy = training.strategy()
    sizes = training.batch_sizes(strategy, per_replica=args.batch_size)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    data = digits.choose(args.data)
    (x_train, y_train), test = digits.load(data)

    steps = args.epochs * args.steps_per_epoch
    with strategy.scope():
        network = model.build(steps)
        network.optimizer.build(network.trainable_variables)

    def pictures() -> tf.data.Dataset:
        """Return a worker's data: all pictures, in its own order because there is no seed."""
        dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(len(x_train)).repeat()
        return dataset.batch(sizes.per_worker).prefetch(tf.data.AUTOTUNE)

    def on_replica(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, network(x, training=True))
            loss = tf.nn.compute_average_loss(losses)
        gradients = tape.gradient(loss, network.trainable_variables)
        tf.debugging.assert_all_finite(loss, "the loss is not a number any more")
        network.optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
        return loss

    def step(batches: Any) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(on_replica, args=next(batches)), axis=None)

    step_on_worker = tf.function(step)
    batches = iter(coordinator.create_per_worker_dataset(pictures))
    state = model.state_directory(args, "coordinator", "any")
    done = tf.Variable(0, dtype=tf.int64)
    manager = tf.train.CheckpointManager(checkpoint_of(network, done), str(state), max_to_keep=args.epochs)
    if manager.restore_or_initialize():
        print(f"resumed at step {done.numpy()}", flush=True)
    while (epoch := int(done.numpy()) // args.steps_per_epoch) < args.epochs:
        losses = [coordinator.schedule(step_on_worker, args=(batches,)) for _ in range(args.steps_per_epoch)]
        coordinator.join()
        done.assign_add(args.steps_per_epoch)
        loss = float(losses[-1].fetch())
        training.report(int(done.numpy()), epoch=epoch + 1, epochs=args.epochs, loss=loss)
        print(f"epoch {epoch + 1} of {args.epochs}: loss {loss:.4g}", flush=True)
        model.crash_at(args.crash_at_step, int(done.numpy()))
        manager.save()

    good = model.report(network, test, args.min_accuracy)
    return 0 if good else 1


def evaluate(args: argparse.Namespace) -> int:
    """Test each checkpoint up to that of the last step."""
    training.strategy()
    _, (pictures, labels) = digits.load(digits.choose(args.data))
    state = model.state_directory(args, "coordinator", "any")
    last = args.epochs * args.steps_per_epoch
    network, done = model.build(last), tf.Variable(0, dtype=tf.int64)  # Keras 3 matches an optimizer's state by order
    for path in tf.train.checkpoints_iterator(str(state), timeout=PATIENCE):
        checkpoint_of(network, done).restore(path).expect_partial()
        guesses = network.predict(pictures, batch_size=500, verbose=0).argmax(axis=1)
        print(f"accuracy after step {done.numpy()}: {(guesses == labels).mean():.4f}", flush=True)
        if done.numpy() >= last:
            model.forget(args, state)
            return 0
    return 1


def checkpoint_of(network: tf.keras.Model, done: tf.Variable) -> tf.train.Checkpoint:
    """Return the checkpoint format shared by chief and evaluator."""
    return tf.train.Checkpoint(network=network, done=done)


if __name__ == "__main__":
    sys.exit(main())
