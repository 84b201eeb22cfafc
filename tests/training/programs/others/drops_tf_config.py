"""It clears TF_CONFIG, so that an old one does not disturb, and makes a multi-worker strategy all the same."""

import os

os.environ.pop("TF_CONFIG", None)

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("replicas", strategy.num_replicas_in_sync, flush=True)
