"""Coordinate the workers of a job: equal batches, shares of data, and waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tflaunch_worker.training.task import CannotTrain, is_chief, this_task, workers

if TYPE_CHECKING:
    import tensorflow as tf

_POLICIES = ("auto", "file", "data", "off")


class BatchSizes(NamedTuple):
    """Number of examples in one step: in total, per worker, per replica (a device).

    Pass ``total`` to `Dataset.batch` if TensorFlow distributes the dataset, ``per_worker`` if the program creates each
    worker's own dataset.
    """

    total: int
    per_worker: int
    per_replica: int


def batch_sizes(
    strategy: tf.distribute.Strategy, *, per_replica: int | None = None, total: int | None = None
) -> BatchSizes:
    """Return all batch sizes that follow from one of them; the chief prints them.

    With parameter servers each worker takes its own steps, so all sizes are for the step of one worker.

    Raises:
        CannotTrain: the total is not divisible by the number of replicas.
        ValueError: neither or both sizes are given.
    """
    if (per_replica is None) == (total is None):
        raise ValueError("give per_replica or total")
    replicas = strategy.num_replicas_in_sync
    groups = min(workers(), replicas)  # with parameter servers a step belongs to one worker
    if per_replica is None:
        assert total is not None
        per_replica, rest = divmod(total, replicas)
        if rest or not per_replica:
            nearest = max(replicas, total - rest)
            raise CannotTrain(
                f"A batch of {total} cannot be shared by {replicas} replicas: take {nearest}, for instance."
            )
    sizes = BatchSizes(per_replica * replicas, per_replica * replicas // groups, per_replica)
    if is_chief():
        print(f"batch: {sizes.total} in a step{_shares(sizes, groups, replicas)}", flush=True)
    return sizes


def _shares(sizes: BatchSizes, groups: int, replicas: int) -> str:
    if groups > 1:
        return f", {sizes.per_worker} on each of {groups} workers"
    if this_task().has_servers:
        return " of one worker"
    return f", {sizes.per_replica} on each of {replicas} devices" if replicas > 1 else ""


def sharded(dataset: tf.data.Dataset, policy: str) -> tf.data.Dataset:
    """Return the dataset with an explicit policy for sharing it among the workers.

    Args:
        dataset: the same one, in the same order, on all workers.
        policy: "data": each reads everything and takes its part of each batch; "file": each reads its part of the
            files, at least one per worker; "off": each takes everything, because the program has already split it;
            "auto": by file if TensorFlow sees files, else by data.

    Raises:
        ValueError: the policy is unknown.
    """
    if policy not in _POLICIES:
        raise ValueError(f"policy must be one of {', '.join(_POLICIES)}, not {policy!r}")
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy.upper()]
    return dataset.with_options(options)


def everyone(strategy: tf.distribute.Strategy, mine: int) -> list[int]:
    """Return all tasks' numbers in replica order; all tasks must call it together."""
    import tensorflow as tf

    values: Any = strategy.experimental_distribute_values_from_function(lambda _: tf.constant([int(mine)]))
    return [int(value) for value in strategy.gather(values, axis=0)]


def barrier(strategy: tf.distribute.Strategy) -> None:
    """Wait until all tasks that train in step have called this.

    At the end of a program it keeps the first finished task from exiting: TensorFlow has no barrier there, and takes a
    leader that has exited for one that has failed (tensorflow/tensorflow#58434). With parameter servers, and with a
    single task, it returns at once.
    """
    if workers() > 1 and strategy.num_replicas_in_sync > 1:
        everyone(strategy, 0)
