"""Report a training's progress to tflaunch, for its view and for `tflaunch ps`.

In your own loop::

    from tflaunch_worker.training import progress

    for step in range(steps):
        loss = train_step()
        progress.report(step + 1, epoch=1, loss=loss)

With Keras: ``model.fit(..., callbacks=[progress.callback()])``.

Nothing here ever raises or blocks, and without tflaunch nothing happens. The format of the lines in the pipe is
described in `tflaunch_worker.agent.progress`.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import time
from contextlib import suppress
from typing import Any

from tflaunch_worker.agent.progress import LONGEST, LONGEST_NAME, MOST_METRICS
from tflaunch_worker.training import hooks

_KERAS_INTERVAL = 0.5  # seconds; reading Keras' logs waits for the step that is running on the GPU
DRILL = "TFLAUNCH_DRILL"
"""Variable of a task whose resuming `tflaunch drill` watches: it prints each step that it reports."""

_COUNTS = ("step", "epoch", "epochs", "steps_per_epoch")


def report(
    step: int,
    *,
    epoch: int | None = None,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    **metrics: Any,
) -> None:
    """Report how far the training is.

    It may be called after every step: values are written about ten times a second, and the last ones when the program
    ends. A value holds until another one is reported.

    Args:
        step: number of finished steps since the training began, including those before a restart.
        epoch: the current epoch, starting with 1.
        epochs: total number of epochs.
        steps_per_epoch: number of steps per epoch.
        metrics: numbers by name, such as ``loss=0.31``; tensors are read only when they are written.
    """
    counts = {"step": step, "epoch": epoch, "epochs": epochs, "steps_per_epoch": steps_per_epoch}
    _teller.tell(counts, metrics)


def callback(keras: Any = None) -> Any:
    """Return a Keras callback that reports progress twice a second and after epochs.

    With several replicas it reports metrics only after every epoch.

    With ParameterServerStrategy it reports only after every epoch, because Keras does not know when a step is done.

    Args:
        keras: the Keras that the program uses, if not ``tf.keras``: the module ``keras`` or ``tf_keras``.
    """
    return hooks.made(hooks.of_program(keras), _ReportProgress)


class _ReportProgress(hooks.Hooks):
    """The callback's hooks, called by any Keras."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = 0
        self._batches = 0
        self._before_epoch = 0
        self._epoch: int | None = None
        self._due = 0.0
        self._with_jax = False
        self._replicas = 1

    def on_train_begin(self, logs: Any = None) -> None:
        """Note what must not be asked of the model within an epoch.

        With JAX, reading ``self.model`` makes Keras 3 move the training's state, which fails beside a running step.
        """
        self._batches = 0
        self._with_jax = hasattr(self.model, "jax_state_sync")
        self._begun = self._iterations() or 0
        self._replicas = int(getattr(getattr(self.model, "distribute_strategy", None), "num_replicas_in_sync", 1))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch; Keras counts from 0."""
        self._epoch = epoch + 1
        self._before_epoch = self._batches

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Report after a step, or several with ``steps_per_execution``, if it is time."""
        self._batches = self._before_epoch + batch + 1
        now = time.monotonic()
        if (now >= self._due or os.environ.get(DRILL)) and isinstance(
            logs, dict
        ):  # a RemoteValue belongs to a step that is only scheduled
            self._due = now + _KERAS_INTERVAL
            # Within an epoch tf_keras sums the replicas' metrics (2.21 on two workers: an accuracy of 2.0).
            self._report(logs if self._replicas == 1 else {})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Report after an epoch, including its validation."""
        self._report(logs if isinstance(logs, dict) else {})

    def on_train_end(self, logs: Any = None) -> None:
        """Write the last values, since the program may continue for long."""
        _teller.flush()

    def _report(self, logs: dict[str, Any]) -> None:
        if not _teller.is_wanted:
            return
        params = self.params or {}
        counts = {"step": self._step(), "epoch": self._epoch}
        counts.update(epochs=params.get("epochs"), steps_per_epoch=params.get("steps"))
        _teller.tell(counts, logs)

    def _step(self) -> int:
        """Return the optimizer's count, which survives restarts, or else that of `fit`."""
        iterations = None if self._with_jax else self._iterations()
        return self._begun + self._batches if iterations is None else iterations

    def _iterations(self) -> int | None:
        try:
            return int(self.model.optimizer.iterations.numpy())
        except Exception:  # no optimizer may stop the training
            return None


class Teller:
    """Writes lines into the pipe, at a limited rate; later lines hold skipped values."""

    def __init__(self, interval: float = 0.1) -> None:
        """Prepare to write, with at least ``interval`` seconds between two lines."""
        self._interval = interval
        self._pipe: int | None = None
        self._due = 0.0
        self._untold: dict[Any, Any] = {}  # counts by name, metrics by ("metrics", name)
        self._is_registered = False

    @property
    def is_wanted(self) -> bool:
        """Whether the process runs under tflaunch."""
        return bool(os.environ.get("TFLAUNCH_PROGRESS"))

    def tell(self, counts: dict[str, Any], metrics: dict[str, Any]) -> None:
        """Add values by name, and write them if it is time."""
        if not self.is_wanted:
            return
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self.flush)
            os.register_at_fork(after_in_child=self._untold.clear)  # the parent reports these values
        self._untold.update((name, value) for name, value in counts.items() if value is not None)
        self._untold.update((("metrics", name), value) for name, value in metrics.items())
        if os.environ.get(DRILL):
            _print_step(counts, metrics)
        if time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Write the pending values, if the pipe can be written."""
        self._due = time.monotonic() + self._interval
        try:
            if self._untold and self._write(_line(dict(self._untold))):
                self._untold.clear()
        except Exception:  # no metric may stop the training
            self._untold.clear()

    def _write(self, line: bytes) -> bool:
        """Write a line atomically; return whether that was possible."""
        try:
            if self._pipe is None:
                self._pipe = os.open(os.environ["TFLAUNCH_PROGRESS"], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(self._pipe, line)
        except BlockingIOError:
            return False  # the pipe is full
        except OSError:
            self.close()  # the pipe has no reader, or is gone
            return False
        return True

    def close(self) -> None:
        """Close the pipe; the next line opens it again."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def _print_step(counts: dict[str, Any], metrics: dict[str, Any]) -> None:
    told = {name: number for name, value in metrics.items() if (number := _number(value)) is not None}
    with suppress(OSError, ValueError):  # the program has closed its output
        print(f"step {counts.get('step')}", *(f"{name} {value:.7g}" for name, value in told.items()), flush=True)


def _line(values: dict[Any, Any]) -> bytes:
    """Return the line for counts by name and metrics by ("metrics", name)."""
    said: dict[str, Any] = {name: int(values[name]) for name in _COUNTS if name in values}
    metrics = {key[1]: _number(value) for key, value in values.items() if isinstance(key, tuple)}
    chosen = list(metrics.items())[:MOST_METRICS]
    while True:
        said["metrics"] = {str(name)[:LONGEST_NAME]: value for name, value in chosen}
        line = json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        if len(line) <= LONGEST or not chosen:
            return line
        chosen.pop()


def _number(value: Any) -> float | None:
    """Return a metric as a finite number; None, which removes it, for other values."""
    try:
        number = float(value)
    except Exception:  # no metric may stop the training
        return None
    return number if math.isfinite(number) else None


_teller = Teller()
