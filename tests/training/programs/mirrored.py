"""Steps of MultiWorkerMirroredStrategy: each adds the number of workers to a weight, saves and prints it.

    mirrored.py LAST [FAULT]

LAST is the step after which it ends, 0 for never. FAULT is Python code that runs after every step, with `step`,
`task`, `attempt` and `leave`. A weight that differs from the sum of its steps shows that a step was lost or repeated.
"""

import os
import sys
import time
from pathlib import Path

import tensorflow as tf

task, attempt = os.environ["TFLAUNCH_TASK"], int(os.environ["TFLAUNCH_ATTEMPT"])
last, fault = int(sys.argv[1]), "".join(sys.argv[2:3])

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    counter = tf.Variable(0, dtype=tf.int64)
    weight = tf.Variable(0.0)
checkpoint = tf.train.Checkpoint(counter=counter, weight=weight)
# All workers save, since reading a variable may involve all of them; only the chief's copy is kept.
own = "checkpoint" if strategy.extended.should_checkpoint else f"workertemp-{task[-1]}"
manager = tf.train.CheckpointManager(checkpoint, str(Path(own).absolute()), max_to_keep=2)
checkpoint.restore(tf.train.latest_checkpoint(str(Path("checkpoint").absolute())))
print(f"attempt {attempt} begins at step {counter.numpy()}", flush=True)


@tf.function
def train() -> tf.Tensor:
    """Return the number of workers, as the sum over the replicas."""
    return strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)


def leave() -> None:
    """End after the workers have all done this step, which fails for those that a worker leaves early."""
    Path(f"left-{attempt}-{task}").touch()
    while len(list(Path().glob(f"left-{attempt}-*"))) < strategy.num_replicas_in_sync:
        time.sleep(0.05)
    sys.exit()


while not last or counter.numpy() < last:
    weight.assign_add(train())
    counter.assign_add(1)
    manager.save()
    step = counter.numpy()
    print(f"step {step}: weight {weight.numpy():g}", flush=True)
    exec(fault)
    time.sleep(0.2)  # while tests wait for something else, steps only cost time
