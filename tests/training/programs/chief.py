"""The chief of a ParameterServerStrategy job: each step is one sum on a worker, saved and printed.

It ends once a file `enough` exists.
"""

import os
import time
from pathlib import Path

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    counter = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(counter=counter)
manager = tf.train.CheckpointManager(checkpoint, str(Path("checkpoint").absolute()), max_to_keep=2)
checkpoint.restore(manager.latest_checkpoint)
print(f"attempt {os.environ['TFLAUNCH_ATTEMPT']} begins at step {counter.numpy()}", flush=True)


@tf.function
def train() -> None:
    """Count, on a worker."""
    counter.assign_add(1)


while not Path("enough").exists():
    coordinator.schedule(train)
    coordinator.join()
    manager.save()
    print(f"step {counter.numpy()}", flush=True)
    time.sleep(0.2)  # while tests wait for something else, steps only cost time
print("enough", flush=True)
# If a worker is lost, ClusterCoordinator.__del__ waits for a thread that has stopped at interpreter exit.
os._exit(0)
