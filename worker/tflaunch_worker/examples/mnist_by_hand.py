"""Train a small network on a cluster made from arguments, not from TF_CONFIG.

With tflaunch:  tflaunch up cluster_specs/mnist_by_hand.json
By hand:        python -m tflaunch_worker.examples.mnist_by_hand --workers h1:2222,h2:2222 --index 0

Each worker gets the addresses of all workers and its own index; `tflaunch up` fills them in for the placeholders
{cluster.worker} and {task.index} of the spec's command. The same works for any program with such arguments.
"""

from __future__ import annotations

import sys

import tensorflow as tf

from tflaunch_worker import training
from tflaunch_worker.examples import arguments, digits, mnist_custom_loop, model, pipeline

SEED = 20


def main() -> int:
    """Train and test the network; return 0 if it is accurate enough, else 1."""
    parser = arguments.parser_of(__doc__, 100)
    parser.add_argument("--workers", required=True, help="addresses of all workers, separated by commas")
    parser.add_argument("--index", type=int, required=True, help="index of this worker among them")
    args = parser.parse_args()
    cluster = tf.train.ClusterSpec({"worker": args.workers.split(",")})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="worker", task_id=args.index, rpc_layer="grpc"
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    sizes = training.batch_sizes(strategy, per_replica=args.batch_size)
    data = digits.choose(args.data, lambda mine: all(training.everyone(strategy, mine)))
    train, test = digits.load(data)
    dataset = pipeline.endless(pipeline.write_files(train), sizes.total, "data", SEED)
    batches = iter(strategy.experimental_distribute_dataset(dataset))

    steps = args.epochs * args.steps_per_epoch
    model.seed(SEED)
    with strategy.scope():
        network = model.build(steps)
        network.optimizer.build(network.trainable_variables)
        step = tf.Variable(0, dtype=tf.int64, trainable=False)
    train_step = mnist_custom_loop.make_step(strategy, network, sizes)
    for done in range(1, steps + 1):
        loss = train_step(next(batches), step)
        training.report(done, epochs=args.epochs, steps_per_epoch=args.steps_per_epoch, loss=loss)
    good = model.report(network, test, args.min_accuracy)
    training.barrier(strategy)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
