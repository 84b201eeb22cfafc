"""Run TensorFlow's server for worker and ps: programs need only the chief's code.

Run as a program by its path (it needs only TensorFlow), or imported. The task comes from TF_CONFIG. Like
``run_standard_tensorflow_server`` in TensorFlow's distribute_coordinator.py, it never exits by itself.
"""

from __future__ import annotations

import os


def serve() -> None:
    """Start the server of TF_CONFIG, and wait until the process is terminated."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster = resolver.cluster_spec()
    # A step that waits for another task occupies a thread. On one core the default pool is too small, and the chief
    # waits forever (measured with TensorFlow 2.21, two and three workers).
    threads = max(cluster.num_tasks("worker") + 1, os.cpu_count() or 1)
    server = tf.distribute.Server(
        cluster,
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads),
    )
    server.join()


if __name__ == "__main__":
    serve()
