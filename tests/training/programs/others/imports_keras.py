"""`import keras` instead of `tf.keras`: always Keras 3, which cannot `fit` under MultiWorkerMirroredStrategy."""

import keras
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensors((tf.ones((2,)), tf.ones((1,)))).repeat().batch(4)
model.fit(data, epochs=1, steps_per_epoch=2, verbose=2)
