"""Keep the last output of an attempt, for its Keras progress and its failure signature.

Progress is parsed for programs that report nothing through TFLAUNCH_PROGRESS. Both generations of Keras write
``Epoch 3/10`` on its own line. A bar follows, redrawn in place::

    120/469 [=====>........................] - ETA: 3s - loss: 0.3120 - accuracy: 0.9012     (tf_keras 2.21)
    120/469 ━━━━━━━━━━━━━━━━━━━━ 3s 10ms/step - accuracy: 0.9012 - loss: 0.3120              (Keras 3)
    469/469 - 3s - loss: 0.3120 - accuracy: 0.9012 - 3s/epoch - 6ms/step                     (verbose=2)

Signatures distinguish a program's failures: the supervisor compares them to decide whether a restart is worthwhile.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import re
from collections import deque

from tflaunch_worker import failures

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
        begun = last_epoch(text)
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
        bar = last_bar(self._tail())
        if bar is not None:
            done, steps, metrics = bar
            known.update({"step": (epoch - 1) * steps + done, "steps_per_epoch": steps, "metrics": metrics})
        return known

    def failure(self) -> str:
        """Return the signature of the program's failure (see `failure_signature`)."""
        return failure_signature(self._tail())

    def _tail(self) -> bytes:
        return b"".join(self._pieces)[-KEPT:]


OUTPUT_SIGNATURE = "output "
"""Prefix of a signature that is a digest of the last lines, used when they contain no traceback."""

LONGEST = 200
"""Maximum number of characters of a signature."""

_COMPARED_LINES = 3


def failure_signature(tail: bytes) -> str:
    """Return the signature of a failure, such as ``ValueError at train.py:41``; "" without output.

    Args:
        tail: the last few KiB of the program's output.
    """
    lines = failures.bounded(tail.decode("utf-8", "replace").split("\n"))
    failure = failures.find_failure(lines)
    if failure is not None and failure.kind:
        return failure.identity[:LONGEST]
    said = [failure.sentence, failure.place] if failure is not None else lines
    last = [line.strip() for line in said if line.strip()][-_COMPARED_LINES:]
    if not last:
        return ""
    import hashlib  # it loads OpenSSL, and most tasks never fail

    same = failures.without_numbers("\n".join(last))
    return OUTPUT_SIGNATURE + hashlib.sha256(same.encode("utf-8", "replace")).hexdigest()[:12]


MOST_METRICS = 20
_LARGEST = 2.0**63

_EPOCH = rb"(?:^|[\r\n\b])Epoch (\d{1,7})/(\d{1,7})\r?\n"
_COLOR = rb"\x1b\[[0-9;]*m"
_BAR = rb"(?:^|[\r\n\b])\s*(\d{1,9})/(\d{1,9}) (?:\[[=>.]+\]|(?:\xe2\x94\x81)+|- \d+m?s)([^\r\n\b]*)"
_METRIC = rb" - ([A-Za-z]\w{0,63}): ([-+]?\d[\d.]*(?:e[-+]?\d{1,3})?)(?= |$)"
_NOT_METRICS = (b"ETA",)


def last_epoch(output: bytes) -> tuple[int, int, int] | None:
    """Return the last epoch begun, the number of epochs, and where the output continues after that line.

    Returns None if no epoch begins in the output.
    """
    if b"Epoch " not in output:
        return None
    last = None
    for begun in re.finditer(_EPOCH, output):
        last = begun
    return None if last is None else (int(last[1]), int(last[2]), last.end())


def last_bar(output: bytes) -> tuple[int, int, dict[str, float]] | None:
    """Return the last bar's step within the epoch, steps per epoch and metrics; None without a bar."""
    bars = re.findall(_BAR, re.sub(_COLOR, b"", output))
    if not bars:
        return None
    done, steps, behind = bars[-1]
    metrics: dict[str, float] = {}
    for name, value in re.findall(_METRIC, behind):
        if name not in _NOT_METRICS and len(metrics) < MOST_METRICS:
            number = _number(value)
            if number is not None:
                metrics[name.decode("ascii")] = number
    return int(done), int(steps), metrics


def _number(text: bytes) -> float | None:
    """Return the number if it can be sent, or None for text such as "1.2.3" or "1e999"."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if -_LARGEST < number < _LARGEST else None
