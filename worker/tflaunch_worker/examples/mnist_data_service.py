"""Train a small network on several workers with data from a tf.data service.

With tflaunch:  tflaunch up cluster_specs/mnist_data_service.json
By hand:        python -m tflaunch_worker.examples.mnist_data_service dispatcher &
                python -m tflaunch_worker.examples.mnist_data_service data-worker &
                TF_USE_LEGACY_KERAS=1 python -m tflaunch_worker.examples.mnist_data_service

The dispatcher and its data workers prepare batches in processes of their own, for whoever trains: the way out when
preparing data takes longer than training on it. They are sidecars, no part of TF_CONFIG. All must see the same
--state-dir, where the pictures are, and the dispatcher's address in $DATA_SERVICE (default: localhost:5050).
"""

from __future__ import annotations

import os
import sys

import tensorflow as tf

from tflaunch_worker import training
from tflaunch_worker.examples import arguments, digits, model, pipeline

SAVE_EVERY = 10  # steps
SEED = 20
SERVICE = os.environ.get("DATA_SERVICE", "localhost:5050")


def main() -> int:
    """Run the part named by the first argument; trainers return 0 if accurate, else 1."""
    part, *others = sys.argv[1:] or [""]
    if part in ("dispatcher", "data-worker"):
        return dispatch() if part == "dispatcher" else prepare()
    return train(others if part == "train" else sys.argv[1:])


def dispatch() -> int:
    """Assign work to data workers, and data workers to trainers, until terminated."""
    port = int(SERVICE.rpartition(":")[2])
    tf.data.experimental.service.DispatchServer(tf.data.experimental.service.DispatcherConfig(port=port)).join()
    return 0


def prepare() -> int:
    """Prepare data until terminated; trainers reach this host by $DATA_WORKER."""
    service = tf.data.experimental.service
    me = os.environ.get("DATA_WORKER", "localhost") + ":%port%"  # TensorFlow inserts the port that it chose
    service.WorkerServer(service.WorkerConfig(dispatcher_address=SERVICE, worker_address=me)).join()
    return 0


def train(words: list[str]) -> int:
    """Train and test the network; return 0 if it is accurate enough, else 1."""
    args = arguments.read(__doc__, 100, "worker 1 kills itself after step N", words)
    model.require_tf_keras()
    strategy = training.strategy()
    sizes = training.batch_sizes(strategy, per_replica=args.batch_size)
    data = digits.choose(args.data, lambda mine: all(training.everyone(strategy, mine)))
    train_pictures, test = digits.load(data)

    state = model.state_directory(args, "data-service", data)
    files = pipeline.write_files(train_pictures, state / "files") if training.is_chief() else []
    training.barrier(strategy)  # from here on, all tasks that share the directory see the files
    files = files or pipeline.written_files(state / "files")
    dataset = pipeline.endless(files, sizes.per_worker, "off", SEED)
    service = tf.data.experimental.service
    dataset = dataset.apply(
        service.distribute(
            processing_mode=service.ShardingPolicy.OFF,  # each data worker provides all pictures, endlessly
            service=f"grpc://{SERVICE}",
            # Workers with the same name share the prepared data; a new attempt must not continue with leftovers.
            job_name=f"mnist-{os.environ.get('TFLAUNCH_ATTEMPT', '0')}",
        )
    )

    model.seed(SEED)
    with strategy.scope():
        network = model.build(args.epochs * args.steps_per_epoch)
    callbacks = training.callbacks(state, save_every=SAVE_EVERY, logs=args.logs)
    if training.this_task().name == "worker:1":
        callbacks += model.crash_drill(network, args.crash_at_step, "step")
    network.fit(
        strategy.distribute_datasets_from_function(lambda _context: dataset),
        epochs=args.epochs,
        steps_per_epoch=args.steps_per_epoch,
        callbacks=callbacks,
        verbose=0,
    )

    good = model.report(network, test, args.min_accuracy)
    training.barrier(strategy)
    if training.is_chief():
        model.forget(args, state)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
