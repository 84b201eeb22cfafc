"""What the workers of a job must do alike: take the same batch, share the data, wait for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tflaunch_worker.training.task import CannotTrain, is_chief, this_task, workers

if TYPE_CHECKING:
    import tensorflow as tf

_POLICIES = ("auto", "file", "data", "off")


class BatchSizes(NamedTuple):
    """How many examples one step takes: by all, by one worker, by one of its replicas (a device).

    ``total`` is what `Dataset.batch` gets where TensorFlow distributes the dataset, ``per_worker`` where the
    program makes each worker's own.
    """

    total: int
    per_worker: int
    per_replica: int


def batch_sizes(
    strategy: tf.distribute.Strategy, *, per_replica: int | None = None, total: int | None = None
) -> BatchSizes:
    """Return the sizes that follow from one of them; the chief prints them.

    With parameter servers each worker takes a step of its own, so all of them are the size of one worker's step.

    Raises:
        CannotTrain: the total cannot be shared evenly.
        ValueError: neither or both sizes are given.
    """
    if (per_replica is None) == (total is None):
        raise ValueError("give per_replica or total")
    replicas = strategy.num_replicas_in_sync
    groups = min(workers(), replicas)  # parameter servers: 1 step, 1 worker
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
    """Return the dataset with the way in which it is shared among workers stated, instead of guessed.

    Args:
        dataset: the same one, in the same order, on all workers.
        policy: "data": each reads all and takes its part of each batch; "file": each reads its part of the files,
            of which there must be at least as many as workers; "off": each takes all, since the program has
            made its part already; "auto": by file where TensorFlow sees files, else by data.

    Raises:
        ValueError: there is no such policy.
    """
    if policy not in _POLICIES:
        raise ValueError(f"policy must be one of {', '.join(_POLICIES)}, not {policy!r}")
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy.upper()]
    return dataset.with_options(options)


def everyone(strategy: tf.distribute.Strategy, mine: int) -> list[int]:
    """Tell all tasks a number and return theirs, in the order of their replicas; all must call it together."""
    import tensorflow as tf

    values: Any = strategy.experimental_distribute_values_from_function(lambda _: tf.constant([int(mine)]))
    return [int(value) for value in strategy.gather(values, axis=0)]


def barrier(strategy: tf.distribute.Strategy) -> None:
    """Wait until all tasks that train in step have come here.

    At the end of a program it keeps the first that is done from leaving: TensorFlow has no barrier there, and takes
    a leader that has gone for one that has failed (tensorflow/tensorflow#58434). With parameter servers, and alone,
    there is nobody to wait for.
    """
    if workers() > 1 and strategy.num_replicas_in_sync > 1:
        everyone(strategy, 0)
