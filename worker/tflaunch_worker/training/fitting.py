"""What a good call of Keras' `fit` brings along: state that survives, progress, curves, and an end when it is lost."""

from __future__ import annotations

import contextlib
import math
import os
import time
from pathlib import Path
from typing import Any

from tflaunch_worker.training import hooks, progress
from tflaunch_worker.training.task import is_chief, this_task

_LOOK_AT_LOSS = 0.5  # seconds; reading the loss waits for the step that is under way on the GPU
_DIGITS = 20


def callbacks(
    state: str | os.PathLike[str] | None = None,
    *,
    save_every: int | str = "epoch",
    logs: str | os.PathLike[str] | None = None,
    keras: Any = None,
) -> list[Any]:
    """Return the callbacks that every `fit` of a job should have; pass the same ones on all tasks.

    They stop a training whose loss is no number (with an exception, so that the program does not end well), go on
    from the last saved state and say what is done again, tell tflaunch of the progress, print a line for every
    epoch on the chief, and write the chief's curves for TensorBoard.

    Args:
        state: where the state is saved, as `checkpoint_dir` gives it; None for a training that starts anew.
        save_every: steps between two savings, or "epoch". With ParameterServerStrategy and with Keras 3 it is always
            the epoch: the former can save only there, the latter forgets at which step it saved.
        logs: the directory of TensorBoard's files; None for none. It needs the package tensorboard.
        keras: the Keras that the program uses, if that is not ``tf.keras``: the module ``keras`` or ``tf_keras``.
    """
    keras = hooks.of_program(keras)
    if this_task().has_servers or _is_keras_3(keras):
        save_every = "epoch"
    every = save_every if isinstance(save_every, int) else None
    chosen = [hooks.made(keras, _StopOnNaN, every)]  # before anything saves a network that is lost
    if state is not None:
        place = os.fspath(state)
        chosen.append(keras.callbacks.BackupAndRestore(place, save_freq=save_every, delete_checkpoint=False))
        chosen.append(hooks.made(keras, _TellResumed, place))
    chosen.append(progress.callback(keras))
    if is_chief():
        chosen.append(hooks.made(keras, _TellEpochs))
        if logs is not None:
            chosen.append(keras.callbacks.TensorBoard(os.fspath(logs)))
    return chosen


def _is_keras_3(keras: Any) -> bool:
    """Whether it is not Keras 2 or tf_keras, which go on from the very step (``version`` came with Keras 3)."""
    return hasattr(keras, "version")


class _StopOnNaN(hooks.Hooks):
    """Raises when the loss is NaN or infinite: at the end of an epoch, before a saving, and about twice a second."""

    def __init__(self, save_every: int | None) -> None:
        super().__init__()
        self._save_every = save_every
        self._batches = 0
        self._due = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A step is done."""
        self._batches += 1
        is_saved_next = self._save_every is not None and self._batches % self._save_every == 0
        if is_saved_next or time.monotonic() >= self._due:
            self._due = time.monotonic() + _LOOK_AT_LOSS
            self._check(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """An epoch is done."""
        self._check(logs)

    def _check(self, logs: Any) -> None:
        if isinstance(logs, dict) and "loss" in logs:  # a RemoteValue is of a step that is only planned
            import tensorflow as tf

            message = "the loss is no number any more: look at the learning rate and at the data"
            tf.debugging.assert_all_finite(tf.cast(logs["loss"], tf.float32), message)


class _TellResumed(hooks.Hooks):
    """Says after a restart from which step the training goes on, and which steps are done again.

    The chief notes beside the state how many steps are done: a few bytes at a fixed place, which the system keeps
    when the process is killed.
    """

    def __init__(self, state: str) -> None:
        super().__init__()
        self._file = Path(state, "steps-done")
        self._note: int | None = None
        self._done = 0
        self._begun = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """BackupAndRestore, which stands before this one, has restored what there is."""
        self._done = int(self.model.optimizer.iterations.numpy())
        was_done = self._read_note()
        if self._done or was_done:
            print(f"resumed at step {self._done}, steps done again: {max(0, was_done - self._done)}", flush=True)
        if is_chief():
            with contextlib.suppress(OSError):  # without a note, nothing is lost but the sentence above
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._note = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A step, or several with ``steps_per_execution``, begin."""
        self._begun = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """They are done."""
        self._done += batch - self._begun + 1
        self._write_note()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """An epoch is done; with parameter servers nothing was known of its steps."""
        self._done = int(self.model.optimizer.iterations.numpy())
        self._write_note()

    def on_train_end(self, logs: Any = None) -> None:
        """The training is done."""
        if self._note is not None:
            os.close(self._note)
            self._note = None

    def _write_note(self) -> None:
        if self._note is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._note, f"{self._done:{_DIGITS}d}\n".encode("ascii"), 0)

    def _read_note(self) -> int:
        try:
            return int(self._file.read_text("ascii"))
        except (OSError, ValueError):
            return 0


class _TellEpochs(hooks.Hooks):
    """Prints a line for every epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """An epoch is done, with its validation."""
        of = f" of {self.params['epochs']}" if self.params and self.params.get("epochs") else ""
        figures = ", ".join(f"{name} {_short(value)}" for name, value in (logs or {}).items())
        print(f"epoch {epoch + 1}{of}: {figures}", flush=True)


def _short(value: Any) -> str:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return "?"
    return f"{number:.4g}" if math.isfinite(number) else str(number)
