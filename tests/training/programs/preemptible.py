"""Steps of MultiWorkerMirroredStrategy that PreemptionCheckpointHandler saves only on TERM.

    preemptible.py ENDLESS MORE

The attempts 0 to ENDLESS - 1 never end; later ones end after MORE steps.
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
    """Return 1, as the mean over the workers."""
    return strategy.reduce("MEAN", strategy.run(lambda: tf.constant(1.0)), axis=None)


while attempt < endless or counter.numpy() < first + more:
    handler.run(train)
    counter.assign_add(1)
    print(f"step {counter.numpy()}", flush=True)
    time.sleep(0.2)  # while tests wait for something else, steps only cost time
