"""Save on all workers, as reading a variable may involve all, and keep one result."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tflaunch_worker.training.task import CannotTrain, is_chief, this_task


def checkpoint_dir(directory: str | os.PathLike[str] = "checkpoints") -> str:
    """Return the directory of this run's checkpoints, one for all tasks and attempts.

    Under tflaunch it is a subdirectory of ``directory`` named after the run, so that a new run does not resume from the
    end of an old one; otherwise it is ``directory``. The path is absolute, because parameter servers write their part
    themselves, whatever their working directory is. All hosts must share it.
    """
    place = os.fspath(directory)
    run = os.environ.get("TFLAUNCH_RUN", "")
    if "://" not in place:  # as in gs://bucket
        place = os.path.abspath(place)
    return f"{place.rstrip('/')}/{run}" if run else place


def save_path(path: str | os.PathLike[str]) -> str:
    """Return where this task saves what all tasks save together, such as a model.

    For the chief it is ``path``; for other tasks a temporary path with the same file name.
    """
    if is_chief():
        return os.fspath(path)
    return str(Path(_scratch(), Path(path).name))


def preemption(checkpoint: Any, directory: str | os.PathLike[str]) -> Any:
    """Return TensorFlow's PreemptionCheckpointHandler for your own training loop.

    Call ``handler.run(step)`` for each step. When any task gets TERM, all save after the same step and exit with code
    42, which makes tflaunch restart them. Create it after the strategy: that restores what was saved.

    Args:
        checkpoint: a ``tf.train.Checkpoint``.
        directory: as returned by `checkpoint_dir`; with several workers all must share it.

    Raises:
        CannotTrain: the job has parameter servers, for which TensorFlow provides no such handler.
    """
    if this_task().has_servers:
        sentence = "TensorFlow cannot save before a preemption with parameter servers: save in the training loop."
        raise CannotTrain(sentence)
    import tensorflow as tf

    resolver = tf.distribute.get_strategy().cluster_resolver
    resolver = resolver or tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.experimental.PreemptionCheckpointHandler(resolver, checkpoint, os.fspath(directory))


def _scratch() -> str:
    """Return a directory that is removed after this task: tflaunch's or our own."""
    given = os.environ.get("TFLAUNCH_TASK_DIR")
    if given and os.path.isdir(given):
        return given
    made = tempfile.mkdtemp(prefix="not-the-chief-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
