"""Steps of MultiWorkerMirroredStrategy that are saved only when TERM comes, by PreemptionCheckpointHandler.

    preemptible.py ENDLESS MORE

In the attempts 0 to ENDLESS - 1 it goes on for ever; after them it ends after MORE steps.
"""

import os
import sys
import time
from pathlib import Path

import tensorflow as tf

attempt, endless, more = int(os.environ["TFLAUNCH_ATTEMPT"]), int(sys.argv[1]), int(sys.argv[2])

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
with strategy.scope():
    counter = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(counter=counter)
handler = tf.distribute.experimental.PreemptionCheckpointHandler(
    resolver, checkpoint, str(Path("checkpoint").absolute())
)
first = counter.numpy()
print(f"attempt {attempt} begins at step {first}", flush=True)


@tf.function
def train() -> tf.Tensor:
    """Return 1, as the mean of what each worker says."""
    return strategy.reduce("MEAN", strategy.run(lambda: tf.constant(1.0)), axis=None)


while attempt < endless or counter.numpy() < first + more:
    handler.run(train)
    counter.assign_add(1)
    print(f"step {counter.numpy()}", flush=True)
    time.sleep(0.05)  # so that there are not thousands of lines
