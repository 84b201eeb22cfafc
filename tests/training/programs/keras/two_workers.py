"""MultiWorkerMirroredStrategy on two workers; TF_USE_LEGACY_KERAS selects tf.keras."""

import os
from pathlib import Path

import tensorflow as tf

from features import Silently, feature

ALL_WRITE = "all workers write the same path"

strategy = tf.distribute.MultiWorkerMirroredStrategy()
is_chief = os.environ["TFLAUNCH_TASK"] == "worker:0"
data = tf.data.Dataset.from_tensors((tf.ones((2,)), tf.ones((1,)))).repeat().batch(4)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)


@tf.function
def train(x: tf.Tensor) -> tf.Tensor:
    """Take a step towards 1, and return the loss over all workers."""

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - 1) ** 2)
        weights = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return strategy.reduce("SUM", strategy.run(step), axis=None)


with feature("MultiWorkerMirroredStrategy, 2 workers: a loop of one's own"):
    first, *_, last = [float(train(tf.ones((4, 2)))) for _ in range(5)]
    assert last < first, "it learns nothing"

with feature("MultiWorkerMirroredStrategy, 2 workers: `fit`"):
    model.fit(data, epochs=1, steps_per_epoch=2, verbose=0)

with feature("MultiWorkerMirroredStrategy, 2 workers: `evaluate`"):
    model.evaluate(data, steps=2, verbose=0)

with feature("MultiWorkerMirroredStrategy, 2 workers: `predict`"):
    model.predict(tf.ones((8, 2)), batch_size=4, verbose=0)

# Each worker has its own directory here, to show which of them would have written into a shared one.
own = Path("seen-by", os.environ["TFLAUNCH_TASK"]).absolute()
callbacks = tf.keras.callbacks
for callback in (
    callbacks.ModelCheckpoint(str(own / "ModelCheckpoint" / "best.weights.h5"), save_weights_only=True),
    callbacks.BackupAndRestore(str(own / "BackupAndRestore"), delete_checkpoint=False),
    callbacks.TensorBoard(str(own / "TensorBoard")),
):
    name = type(callback).__name__
    with feature(f"MultiWorkerMirroredStrategy, 2 workers: `{name}` writes on the chief only"):
        calls = callbacks.CallbackList([callback], model=model)  # as custom loops do, and `fit` itself
        calls.on_train_begin()
        calls.on_epoch_begin(0)
        calls.on_epoch_end(0, {"loss": 1.0, "val_loss": 1.0})
        calls.on_train_end()
        written = [path for path in (own / name).rglob("*") if path.is_file() and "workertemp_" not in str(path)]
        assert written or not is_chief, "the chief wrote nothing"
        if written and not is_chief:
            raise Silently(ALL_WRITE)
