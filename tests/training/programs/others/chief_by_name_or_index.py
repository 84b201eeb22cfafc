"""Samples of clouds and operators: chief is who is called so, or worker 0; only the chief writes.

    chief_by_name_or_index.py FILE

In a cluster that has a chief beside its workers, there are two of them. Needs no TensorFlow to be seen.
"""

import json
import os
import sys

config = json.loads(os.environ.get("TF_CONFIG") or "{}")
task = config.get("task", {})
kind, index = task.get("type"), task.get("index")
if kind is None or kind == "chief" or (kind == "worker" and int(index) == 0):
    with open(sys.argv[1], "a") as file:
        file.write(f"{kind}:{index}\n")
print("environment:", config.get("environment", "unknown"))
