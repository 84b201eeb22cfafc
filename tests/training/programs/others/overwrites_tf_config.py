"""A notebook made into a script: it writes TF_CONFIG itself, with addresses of its own and always as worker 0.

overwrites_tf_config.py PORT [PORT]
"""

import json
import os
import sys

cluster = {"worker": [f"localhost:{port}" for port in sys.argv[1:]]}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})

import tensorflow as tf  # noqa: E402 - as its author wrote it

strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("replicas", strategy.num_replicas_in_sync, flush=True)
