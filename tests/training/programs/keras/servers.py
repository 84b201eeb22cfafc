"""ParameterServerStrategy with one worker and one ps; TF_USE_LEGACY_KERAS selects tf.keras."""

import os

import tensorflow as tf

from features import feature
from tflaunch_worker import training

training.serve_if_server()
strategy = training.strategy()
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=2)
    model.optimizer.build(model.trainable_variables)


def make(_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
    """Return the data of one worker."""
    return tf.data.Dataset.from_tensors((tf.ones((2,)), tf.ones((1,)))).repeat().batch(4)


@tf.function
def train() -> tf.Tensor:
    """Take a step towards 1 on a worker, and return its loss."""

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(tf.ones((4, 2)), training=True) - 1) ** 2)
        weights = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return strategy.reduce("SUM", strategy.run(step), axis=None)


with feature("ParameterServerStrategy: a loop with ClusterCoordinator"):
    first, *_, last = [coordinator.schedule(train) for _ in range(5)]
    coordinator.join()
    assert last.fetch() < first.fetch(), "it learns nothing"

with feature("ParameterServerStrategy: `fit`"):
    model.fit(make(), epochs=1, steps_per_epoch=2, verbose=0)

with feature("ParameterServerStrategy: `evaluate`"):
    model.evaluate(make(), steps=2, verbose=0)

with feature("ParameterServerStrategy: `fit` with DatasetCreator"):
    dataset = tf.keras.utils.experimental.DatasetCreator(make)
    model.fit(dataset, epochs=1, steps_per_epoch=2, verbose=0)

os._exit(0)  # ClusterCoordinator's end can wait for a thread that is gone
