"""Callbacks for Keras' `fit`: saved state, progress, curves, error at a NaN loss."""

from __future__ import annotations

import contextlib
import math
import os
import time
from pathlib import Path
from typing import Any

from tflaunch_worker.training import hooks, progress
from tflaunch_worker.training.task import is_chief, this_task

_LOOK_AT_LOSS = 0.5  # seconds; reading the loss waits for the step that is running on the GPU
_DIGITS = 20


def callbacks(
    state: str | os.PathLike[str] | None = None,
    *,
    save_every: int | str = "epoch",
    logs: str | os.PathLike[str] | None = None,
    keras: Any = None,
) -> list[Any]:
    """Return the callbacks for every `fit` of a job; pass the same ones on all tasks.

    They stop a training whose loss is NaN or infinite (by an exception, so that the program fails), resume from the
    last saved state and print how many steps are repeated, report the progress to tflaunch, print a line per epoch on
    the chief, and write the chief's curves for TensorBoard.

    Args:
        state: directory of the saved state, as returned by `checkpoint_dir`; None for a training without saved state.
        save_every: steps between saves, or "epoch". With ParameterServerStrategy and with Keras 3 it is always
            "epoch": the former can save only then, the latter does not restore the step at which it saved.
        logs: the directory of TensorBoard's files; None for none. It needs the package tensorboard.
        keras: the Keras that the program uses, if not ``tf.keras``: the module ``keras`` or ``tf_keras``.
    """
    keras = hooks.of_program(keras)
    if this_task().has_servers or _is_keras_3(keras):
        save_every = "epoch"
    every = save_every if isinstance(save_every, int) else None
    chosen = [hooks.made(keras, _StopOnNaN, every)]  # before anything saves a network with an invalid loss
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
    """Return whether it is Keras 3; Keras 2 and tf_keras resume at the exact step."""
    return hasattr(keras, "version")


class _StopOnNaN(hooks.Hooks):
    """Raises at a NaN or infinite loss: after epochs, before saves, twice a second."""

    def __init__(self, save_every: int | None) -> None:
        super().__init__()
        self._save_every = save_every
        self._batches = 0
        self._due = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Check the loss after a step, if a save or the next check is due."""
        self._batches += 1
        is_saved_next = self._save_every is not None and self._batches % self._save_every == 0
        if is_saved_next or time.monotonic() >= self._due:
            self._due = time.monotonic() + _LOOK_AT_LOSS
            self._check(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Check the loss after an epoch."""
        self._check(logs)

    def _check(self, logs: Any) -> None:
        if isinstance(logs, dict) and "loss" in logs:  # a RemoteValue belongs to a step that is only scheduled
            import tensorflow as tf

            message = "the loss is not a number any more: check the learning rate and the data"
            tf.debugging.assert_all_finite(tf.cast(logs["loss"], tf.float32), message)


class _TellResumed(hooks.Hooks):
    """Prints after a restart where training resumes, and how many steps are repeated.

    The chief records the number of finished steps beside the state: a few bytes at a fixed offset, which the operating
    system keeps when the process is killed.
    """

    def __init__(self, state: str) -> None:
        super().__init__()
        self._file = Path(state, "steps-done")
        self._note: int | None = None
        self._done = 0
        self._begun = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Compare the record with the step that BackupAndRestore, run earlier, restored."""
        self._done = int(self.model.optimizer.iterations.numpy())
        was_done = self._read_note()
        if self._done or was_done:
            print(f"resumed at step {self._done}, steps done again: {max(0, was_done - self._done)}", flush=True)
        if is_chief():
            with contextlib.suppress(OSError):  # without the record, only the message above is lost
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._note = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Note the beginning of a step, or of several with ``steps_per_execution``."""
        self._begun = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the finished steps and record them."""
        self._done += batch - self._begun + 1
        self._write_note()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Record an epoch's last step; with parameter servers, single steps are unknown."""
        self._done = int(self.model.optimizer.iterations.numpy())
        self._write_note()

    def on_train_end(self, logs: Any = None) -> None:
        """Close the record."""
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
    """Prints a line per epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Print the figures of an epoch, including its validation."""
        of = f" of {self.params['epochs']}" if self.params and self.params.get("epochs") else ""
        figures = ", ".join(f"{name} {_short(value)}" for name, value in (logs or {}).items())
        print(f"epoch {epoch + 1}{of}: {figures}", flush=True)


def _short(value: Any) -> str:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return "?"
    return f"{number:.4g}" if math.isfinite(number) else str(number)
