"""The examples' input pipeline: pictures from several files, read in parallel."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tflaunch_worker import training

if TYPE_CHECKING:
    from tflaunch_worker.examples.digits import Pictures

FILES = 8
_SIZE = 28


def write_files(pictures: Pictures, directory: Path | None = None) -> list[str]:
    """Write the pictures into several files; return their paths in order.

    A real data set is already in files, which all hosts share. A record is one byte for the digit and one per pixel.

    Args:
        pictures: what to write.
        directory: the target; by default a temporary directory of this task.
    """
    place = directory or Path(tempfile.mkdtemp(prefix="pictures-", dir=os.environ.get("TFLAUNCH_TASK_DIR")))
    place.mkdir(parents=True, exist_ok=True)
    x, y = pictures
    rows = np.concatenate([y[:, np.newaxis], np.rint(x.reshape(len(x), -1) * 255)], axis=1).astype(np.uint8)
    for number in range(FILES):
        with tf.io.TFRecordWriter(str(place / f"{number:02d}.tfrecord")) as writer:
            for row in rows[number::FILES]:
                writer.write(row.tobytes())
    return written_files(place)


def written_files(directory: Path) -> list[str]:
    """Return the paths of the files that another task has written."""
    return sorted(str(path) for path in directory.glob("*.tfrecord"))


def endless(files: list[str], batch: int, policy: str, seed: int | None) -> tf.data.Dataset:
    """Return an endless dataset of shuffled batches: no worker runs out of data first.

    The others would otherwise wait for it forever. All workers use the same seed, so that each takes its share of the
    same batch.

    Args:
        files: what to read.
        batch: number of pictures per step.
        policy: how they are shared among workers, as in `training.sharded`.
        seed: seed of the order; None for a different order every time.
    """
    dataset = tf.data.Dataset.from_tensor_slices(files)
    dataset = dataset.interleave(
        tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE, deterministic=seed is not None
    )
    dataset = dataset.map(_parsed, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.cache()  # from here on the pictures are in memory, and the files are read only once
    dataset = dataset.shuffle(10_000, seed=seed).repeat().batch(batch, drop_remainder=True)
    return training.sharded(dataset.prefetch(tf.data.AUTOTUNE), policy)


def _parsed(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    values = tf.io.decode_raw(record, tf.uint8)
    label = tf.cast(values[0], tf.int64)
    picture = tf.cast(tf.reshape(values[1:], (_SIZE, _SIZE, 1)), tf.float32) / 255.0
    with tf.control_dependencies([tf.debugging.assert_less(label, tf.constant(10, tf.int64), "no digit")]):
        return tf.identity(picture), label
