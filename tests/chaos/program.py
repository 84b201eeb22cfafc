"""A training whose result is known: the data of a step depends only on its number.

    python program.py DIRECTORY STEPS SECONDS

All numbers are integers below 2**53, so that sums in float64 are exact in any order. The task with the checkpoints
(chief or worker 0) saves every `SAVE_EVERY` steps. Each task appends its lines to DIRECTORY/said.TASK before it prints
them, and at the end writes the result to DIRECTORY/result.TASK.
"""

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

SAVE_EVERY = 10  # steps
GREED = 256 << 20
"""Bytes that a task allocates when there is a file DIRECTORY/greed.TASK: more than a drill then lets it have."""
SIZE = 16
TASK = os.environ.get("TFLAUNCH_TASK", "worker:0")
ATTEMPT = os.environ.get("TFLAUNCH_ATTEMPT", "0")

kept_alive: list[bytes] = []


def share(step: int, replica: int) -> float:
    return float((step * 7919 + replica * 104729) % 10007)


def result_of(steps: int, replicas: int) -> float:
    return sum(share(step, replica) for step in range(steps) for replica in range(replicas))


def main(directory: Path, steps: int, seconds: float) -> None:
    import tensorflow as tf

    config = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if "ps" in config.cluster_spec().jobs:
        train_with_servers(config, directory, steps, seconds)
    else:
        train_mirrored(directory, steps, seconds)


def train_mirrored(directory: Path, steps: int, seconds: float) -> None:
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        total = tf.Variable(tf.zeros(SIZE, tf.float64))

    @tf.function
    def train(shares: tf.Tensor) -> None:
        def add() -> None:
            context = tf.distribute.get_replica_context()
            mine = tf.gather(shares, context.replica_id_in_sync_group)
            total.assign_add(context.all_reduce("SUM", tf.fill([SIZE], mine)))

        strategy.run(add)

    number = strategy.num_replicas_in_sync

    def one(step: int) -> None:
        train(tf.constant([share(step, replica) for replica in range(number)], tf.float64))

    run(directory, steps, seconds, total, one)


def train_with_servers(config: object, directory: Path, steps: int, seconds: float) -> None:
    """Train on parameter servers; the chief adds what workers compute, so that a repeated closure does no harm."""
    import tensorflow as tf

    if config.task_type in ("worker", "ps"):  # type: ignore[attr-defined]
        server = tf.distribute.Server(
            config.cluster_spec(),  # type: ignore[attr-defined]
            job_name=config.task_type,  # type: ignore[attr-defined]
            task_index=config.task_id,  # type: ignore[attr-defined]
            protocol="grpc",
        )
        number = 0
        while True:  # as `server.join()`, with output
            say(directory, number)
            number += 1
            time.sleep(0.5)  # clock: lines at intervals are what a server is to write
            assert server is not None
    strategy = tf.distribute.ParameterServerStrategy(config)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(tf.zeros(SIZE, tf.float64))

    @tf.function
    def compute(mine: tf.Tensor) -> tf.Tensor:
        return tf.fill([SIZE], mine)

    def one(step: int) -> None:
        parts = [coordinator.schedule(compute, (tf.constant(share(step, part), tf.float64),)) for part in range(2)]
        total.assign_add(tf.add_n([tf.convert_to_tensor(part.fetch()) for part in parts]))

    code = 0
    try:
        run(directory, steps, seconds, total, one)
    except tf.errors.OpError:  # `fetch` fails if the worker with the result is lost
        traceback.print_exc()
        sys.stderr.flush()
        code = 1
    os._exit(code)  # a coordinator whose worker is lost may wait for it without limit (`ClusterCoordinator.__del__`)


def run(directory: Path, steps: int, seconds: float, total: object, one: Callable[[int], None]) -> None:
    import tensorflow as tf

    from tflaunch_worker.training import progress

    is_saver = TASK in ("chief:0", "worker:0")
    step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(total=total, step=step)
    latest = tf.train.latest_checkpoint(str(directory / "state"))
    if latest:
        checkpoint.restore(latest).assert_consumed()
    where = directory / "state" if is_saver else Path(tempfile.mkdtemp(prefix="unused-", dir=directory))
    manager = tf.train.CheckpointManager(checkpoint, str(where), max_to_keep=2)
    for number in range(int(step.numpy()), steps):
        one(number)
        step.assign(number + 1)
        say(directory, number + 1)
        progress.report(number + 1)
        if (number + 1) % SAVE_EVERY == 0:
            manager.save()
        time.sleep(seconds)  # clock: the pace of the training
    values = total.numpy()  # type: ignore[attr-defined]
    assert len(set(values)) == 1
    (directory / f"result.{TASK}").write_text(f"{values[0]:.0f}\n")


def say(directory: Path, number: int) -> None:
    """Print a line, and keep it where tflaunch has nothing to do with it."""
    line = f"said {TASK} {ATTEMPT} {number}\n"
    with (directory / f"said.{TASK}").open("a") as kept:
        kept.write(line)
    sys.stdout.write(line)
    sys.stdout.flush()
    if (directory / f"greed.{TASK}").exists():
        kept_alive.append(b"x" * GREED)
    if (directory / f"hang.{TASK}").exists():
        (directory / f"hang.{TASK}").unlink()
        time.sleep(10**6)  # clock: it is the hang


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
