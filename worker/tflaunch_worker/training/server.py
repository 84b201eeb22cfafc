"""TensorFlow's standard server for a worker or ps, so that a program needs only the chief's code.

Run as a program by its path; it needs nothing but TensorFlow. The task comes from TF_CONFIG. Like
``run_standard_tensorflow_server`` of TensorFlow's distribute_coordinator.py it never ends by itself.
"""

from __future__ import annotations


def serve() -> None:
    """Start the server that TF_CONFIG asks for, and wait until the process is ended."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        start=True,
    )
    server.join()


if __name__ == "__main__":
    serve()
