"""Features of a single process; TF_CONFIG has one worker, and TF_USE_LEGACY_KERAS selects tf.keras."""

import os
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from features import Silently, feature

STEPS = 6
SAVED = 4

halves = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], halves)
one_worker = tf.distribute.MultiWorkerMirroredStrategy()
mirrored = tf.distribute.MirroredStrategy()
place = Path(tempfile.mkdtemp(dir=os.environ["TMPDIR"]))
data = tf.data.Dataset.from_tensors((tf.ones((2,)), tf.ones((1,)))).repeat().batch(4)


def made() -> Any:
    """Return a compiled network."""
    network = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
    network.compile("sgd", "mse")
    return network


for strategy, name in (
    (one_worker, "MultiWorkerMirroredStrategy, 1 worker: `fit`"),
    (mirrored, "MirroredStrategy, 2 devices: `fit`"),
):
    with feature(name), strategy.scope():
        made().fit(data, epochs=1, steps_per_epoch=2, verbose=0)


class Interrupted(Exception):
    """The training is interrupted."""


class Die(tf.keras.callbacks.Callback):
    """Interrupts the training in the middle of its first epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Raise the interruption."""
        if batch == SAVED:
            raise Interrupted


class Look(tf.keras.callbacks.Callback):
    """Records the first step that is taken."""

    first: int | None = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Record the step."""
        self.first = batch if self.first is None else self.first


def backup() -> Any:
    """Return the callback under test."""
    return tf.keras.callbacks.BackupAndRestore(str(place / "backup"), save_freq=SAVED)


with feature("`BackupAndRestore(save_freq=N)` goes on from the saved step"):
    try:
        made().fit(data, epochs=1, steps_per_epoch=STEPS, verbose=0, callbacks=[backup(), Die()])
    except Interrupted:
        pass
    look = Look()
    made().fit(data, epochs=1, steps_per_epoch=STEPS, verbose=0, callbacks=[backup(), look])
    if look.first == 0:
        raise Silently("it begins the epoch again")
    assert look.first == SAVED, f"it begins with step {look.first}"

with feature("`tf.keras.utils.experimental.DatasetCreator`"):
    tf.keras.utils.experimental.DatasetCreator(lambda _: data)

with feature("`tf.keras.callbacks.experimental.BackupAndRestore`"):
    tf.keras.callbacks.experimental.BackupAndRestore(str(place / "other"))

with feature("`tf.keras.experimental.SidecarEvaluator`"):
    tf.keras.experimental.SidecarEvaluator(made(), data, str(place))

with feature("`tf.keras.layers.experimental.preprocessing`"):
    tf.keras.layers.experimental.preprocessing.Normalization()

with feature("`tf.keras.optimizers.legacy.SGD`"):
    tf.keras.optimizers.legacy.SGD()

with feature("`tf.keras.optimizers.experimental.SGD`"):
    tf.keras.optimizers.experimental.SGD()

with feature("`metric.reset_states()`"):
    tf.keras.metrics.Mean().reset_states()

with feature("`metric.reset_state()`"):
    tf.keras.metrics.Mean().reset_state()

with feature("`optimizer.minimize(loss, variables, tape=tape)`"):
    variable = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = variable**2
    tf.keras.optimizers.SGD().minimize(loss, [variable], tape=tape)

with feature('`model.save("directory")`'):
    made().save(str(place / "directory"))

with feature('`model.save("model.keras")`'):
    made().save(str(place / "model.keras"))

with feature('`model.save_weights("checkpoint")`'):
    made().save_weights(str(place / "checkpoint"))

with feature("`tf.train.Checkpoint(model=model, optimizer=model.optimizer)`"):
    network = made()
    tf.train.Checkpoint(model=network, optimizer=network.optimizer).save(str(place / "saved"))
