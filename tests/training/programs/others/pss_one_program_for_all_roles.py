"""One program for every role of a ParameterServerStrategy job, evaluator included; each finds out who it is.

    pss_one_program_for_all_roles.py CHECKPOINTS

Worker and ps join a server that never ends, and so does the SidecarEvaluator. The chief trains until an operator makes
a file `stop` beside the checkpoints.
"""

import os
import sys
import time

import tensorflow as tf

directory = sys.argv[1]
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()


def compiled() -> tf.keras.Model:
    """Return the model that chief and evaluator share."""
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def train() -> None:
    """Schedule steps on the workers, and save each epoch."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = compiled()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=3)

    def replica_step() -> None:
        x = tf.random.uniform((8, 1))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - 3 * x) ** 2)
        weights = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    @tf.function
    def step() -> None:
        strategy.run(replica_step)

    while not os.path.exists(os.path.join(directory, "stop")):
        for _ in range(10):
            coordinator.schedule(step)
        coordinator.join()
        manager.save()
        time.sleep(0.2)
    print(f"trained {int(model.optimizer.iterations) % 10} over full epochs", flush=True)


if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        start=True,
    )
    print("serving", flush=True)
    server.join()
elif resolver.task_type == "evaluator":
    data = tf.data.Dataset.from_tensors(([1.0], [3.0])).batch(1)
    evaluated = tf.keras.callbacks.LambdaCallback(on_test_end=lambda logs: print("evaluated", sorted(logs), flush=True))
    tf.keras.utils.SidecarEvaluator(compiled(), data, directory, max_evaluations=None, callbacks=[evaluated]).start()
else:
    train()
