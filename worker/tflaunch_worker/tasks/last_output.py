"""Keep the last output of an attempt, for its Keras progress and its failure signature.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

from collections import deque

from tflaunch_worker.tasks import failure_signature, keras_progress

KEPT = 16 * 1024
"""Number of bytes kept: enough for a TensorFlow traceback and what its threads write after it."""

_LONGEST_MARK = 64  # bytes; a line "Epoch 3/10" may be split between two reads


class LastOutput:
    """Takes all output of an attempt and keeps the end of it."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._cut = b""
        self._epoch: tuple[int, int] | None = None

    def note(self, data: bytes) -> None:
        """Add output of the task. Costs one search, because all output passes through here."""
        text = self._cut + data
        begun = keras_progress.last_epoch(text)
        if begun is None:
            self._keep(data)
            self._cut = text[-_LONGEST_MARK:]
            return
        epoch, epochs, end = begun
        self._epoch = epoch, epochs
        self._pieces.clear()  # a bar before this line belongs to an earlier epoch
        self._size = 0
        self._keep(text[end:])
        self._cut = text[end:][-_LONGEST_MARK:]

    def _keep(self, data: bytes) -> None:
        self._pieces.append(data[-KEPT:])
        self._size += len(self._pieces[-1])
        while self._size - len(self._pieces[0]) >= KEPT:
            self._size -= len(self._pieces.popleft())

    def progress(self) -> dict[str, object]:
        """Return epoch, epochs, steps_per_epoch, step and metrics, as far as Keras lines show them."""
        if self._epoch is None:
            return {}
        epoch, epochs = self._epoch
        known: dict[str, object] = {"epoch": epoch, "epochs": epochs}
        bar = keras_progress.last_bar(self._tail())
        if bar is not None:
            done, steps, metrics = bar
            known.update({"step": (epoch - 1) * steps + done, "steps_per_epoch": steps, "metrics": metrics})
        return known

    def failure(self) -> str:
        """Return the signature of the program's failure (see `failure_signature.of_output`)."""
        return failure_signature.of_output(self._tail())

    def _tail(self) -> bytes:
        return b"".join(self._pieces)[-KEPT:]
