"""Where to save. All workers must save, because reading a variable may take all of them; one result is kept."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tflaunch_worker.training.task import CannotTrain, is_chief, this_task


def checkpoint_dir(directory: str | os.PathLike[str] = "checkpoints") -> str:
    """Return the directory of this run's checkpoints, the same for all tasks and attempts of the run.

    Under tflaunch it is a directory in ``directory`` that is named after the run, so that a new run does not go on
    from the end of an old one; else it is ``directory``. It is absolute, because parameter servers write their part
    themselves, from wherever they were started. All hosts must share it.
    """
    place = os.fspath(directory)
    run = os.environ.get("TFLAUNCH_RUN", "")
    if "://" not in place:  # as in gs://bucket
        place = os.path.abspath(place)
    return f"{place.rstrip('/')}/{run}" if run else place


def save_path(path: str | os.PathLike[str]) -> str:
    """Return where this task saves what all of them save together, such as a model.

    For the chief it is ``path``; for the others a place of the same name that nobody keeps.
    """
    if is_chief():
        return os.fspath(path)
    return str(Path(_scratch(), Path(path).name))


def preemption(checkpoint: Any, directory: str | os.PathLike[str]) -> Any:
    """Return TensorFlow's PreemptionCheckpointHandler for a training loop of one's own, and restore what it saved.

    Call ``handler.run(step)`` for each step. When TERM comes (to any of the tasks), all save after the same step and
    exit with code 42, which tells tflaunch to start them again. It must be made after the strategy.

    Args:
        checkpoint: a ``tf.train.Checkpoint``.
        directory: as `checkpoint_dir` gives it; with several workers all must see it.

    Raises:
        CannotTrain: this is a job with parameter servers, for which TensorFlow has none.
    """
    if this_task().has_servers:
        sentence = "TensorFlow cannot save before a preemption with parameter servers: save in the training loop."
        raise CannotTrain(sentence)
    import tensorflow as tf

    resolver = tf.distribute.get_strategy().cluster_resolver
    resolver = resolver or tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.experimental.PreemptionCheckpointHandler(resolver, checkpoint, os.fspath(directory))


def _scratch() -> str:
    """A directory that ends with this task: tflaunch's, or one of our own."""
    given = os.environ.get("TFLAUNCH_TASK_DIR")
    if given and os.path.isdir(given):
        return given
    made = tempfile.mkdtemp(prefix="not-the-chief-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
