"""Create the tf.distribute strategy that the environment selects."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tflaunch_worker.training.server import serve
from tflaunch_worker.training.task import CannotTrain, Task, this_task

if TYPE_CHECKING:
    import tensorflow as tf


def strategy() -> tf.distribute.Strategy:
    """Return this task's strategy; call it before anything else of TensorFlow.

    It is the strategy named in TFLAUNCH_STRATEGY, which tflaunch sets. Without it: ParameterServerStrategy on a cluster
    with a ps, MultiWorkerMirroredStrategy on any other cluster, TPUStrategy if TPU_NAME is set, MirroredStrategy on
    several GPUs, else TensorFlow's default. An evaluator works alone.

    Raises:
        CannotTrain: TF_CONFIG is invalid, this task is a server, there is no TPU, an op has already run, or the job's
            strategy is JAX's.
    """
    task = this_task()
    if os.environ.get("TFLAUNCH_STRATEGY") == "jax":
        other_way = "keras.distribution.initialize()"
        raise CannotTrain(f"This job's strategy is not one of tf.distribute: call {other_way} instead.")
    if task.is_server:
        raise CannotTrain(f"{task.name} takes its work from the chief: call serve_if_server() first.")
    return _MAKERS[_kind(task)]()


def serve_if_server() -> None:
    """Run a ps, or a worker beside a ps, and never return; else do nothing.

    Raises:
        CannotTrain: TF_CONFIG is invalid.
    """
    if this_task().is_server:
        serve()


def _kind(task: Task) -> str:
    """Return the strategy's name, as used in a cluster spec."""
    asked = os.environ.get("TFLAUNCH_STRATEGY", "")
    if task.role == "evaluator":
        return "alone"
    if task.sizes and asked not in ("mirrored", "tpu", "none"):
        return "parameter_server" if task.has_servers else "multi_worker_mirrored"
    if asked == "tpu" or (not asked and os.environ.get("TPU_NAME")):
        return "tpu"
    return "mirrored" if asked == "mirrored" else "alone" if asked == "none" else "mirrored_if_several"


def _multi_worker_mirrored() -> tf.distribute.Strategy:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    except RuntimeError as error:
        if "program startup" not in str(error):  # part of the message in collective_all_reduce_strategy.py
            raise
        sentence = "TensorFlow has run something before strategy(): make the strategy first, at the top of the program."
        raise CannotTrain(sentence) from error


def _parameter_server() -> tf.distribute.Strategy:
    import tensorflow as tf

    return tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())


def _mirrored() -> tf.distribute.Strategy:
    """Return a strategy for all GPUs, or else for all logical CPU devices."""
    import tensorflow as tf

    return tf.distribute.MirroredStrategy()


def _mirrored_if_several() -> tf.distribute.Strategy:
    import tensorflow as tf

    return _mirrored() if len(tf.config.list_physical_devices("GPU")) > 1 else tf.distribute.get_strategy()


def _alone() -> tf.distribute.Strategy:
    import tensorflow as tf

    return tf.distribute.get_strategy()


def _tpu() -> tf.distribute.Strategy:
    import tensorflow as tf

    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        remedy = "run this on a TPU VM with TPU_NAME=local, or set TPU_NAME to the name of a TPU"
        raise CannotTrain(f"There is no TPU here ({reason}): {remedy}.") from error
    return tf.distribute.TPUStrategy(resolver)


_MAKERS = {
    "multi_worker_mirrored": _multi_worker_mirrored,
    "parameter_server": _parameter_server,
    "mirrored": _mirrored,
    "mirrored_if_several": _mirrored_if_several,
    "tpu": _tpu,
    "alone": _alone,
}
