"""The multi-worker tutorial: the batch size from TF_CONFIG, worker 0 is the chief, everybody saves somewhere.

    mwms_tutorial.py --model_dir DIR

The batch size counts the workers only, and the chief is worker 0 only: both are right in a cluster of workers, and
both pass over a task called chief.
"""

import argparse
import json
import os
import shutil

import tensorflow as tf

PER_WORKER_BATCH = 64


def is_chief(task_type: str | None, task_id: int | None) -> bool:
    """Tell who saves for all."""
    return task_type is None or (task_type == "worker" and task_id == 0)


def write_path(directory: str, task_type: str | None, task_id: int | None) -> str:
    """Return where this task saves: the others write into directories of their own, which are removed."""
    own = directory if is_chief(task_type, task_id) else os.path.join(directory, f"workertemp_{task_id}")
    os.makedirs(own, exist_ok=True)
    return os.path.join(own, "model.keras")


parser = argparse.ArgumentParser()
parser.add_argument("--model_dir", required=True)
args = parser.parse_args()

tf_config = json.loads(os.environ["TF_CONFIG"])
global_batch = PER_WORKER_BATCH * len(tf_config["cluster"]["worker"])

strategy = tf.distribute.MultiWorkerMirroredStrategy()
data = tf.data.Dataset.from_tensors((tf.ones((2,)), tf.ones((1,)))).repeat().batch(global_batch)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(data.with_options(options), epochs=1, steps_per_epoch=2, verbose=0)

resolver = strategy.cluster_resolver
path = write_path(args.model_dir, resolver.task_type, resolver.task_id)
model.save(path)
print(f"global batch {global_batch} on {strategy.num_replicas_in_sync} replicas", flush=True)
print(f"saved {os.path.relpath(path, args.model_dir)}", flush=True)
if not is_chief(resolver.task_type, resolver.task_id):
    shutil.rmtree(os.path.dirname(path))
