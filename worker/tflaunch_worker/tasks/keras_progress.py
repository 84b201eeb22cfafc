"""Parse Keras progress lines, for programs that report nothing through TFLAUNCH_PROGRESS.

Both generations of Keras write ``Epoch 3/10`` on its own line. A bar follows, redrawn in place::

    120/469 [=====>........................] - ETA: 3s - loss: 0.3120 - accuracy: 0.9012     (tf_keras 2.21)
    120/469 ━━━━━━━━━━━━━━━━━━━━ 3s 10ms/step - accuracy: 0.9012 - loss: 0.3120              (Keras 3)
    469/469 - 3s - loss: 0.3120 - accuracy: 0.9012 - 3s/epoch - 6ms/step                     (verbose=2)

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import re

MOST_METRICS = 20
_LARGEST = 2.0**63

_EPOCH = re.compile(rb"(?:^|[\r\n\b])Epoch (\d{1,7})/(\d{1,7})\r?\n")
_COLOR = re.compile(rb"\x1b\[[0-9;]*m")
_BAR = re.compile(rb"(?:^|[\r\n\b])\s*(\d{1,9})/(\d{1,9}) (?:\[[=>.]+\]|(?:\xe2\x94\x81)+|- \d+m?s)([^\r\n\b]*)")
_METRIC = re.compile(rb" - ([A-Za-z]\w{0,63}): ([-+]?\d[\d.]*(?:e[-+]?\d{1,3})?)(?= |$)")
_NOT_METRICS = (b"ETA",)


def last_epoch(output: bytes) -> tuple[int, int, int] | None:
    """Return the last epoch begun, the number of epochs, and where the output continues after that line.

    Returns None if no epoch begins in the output.
    """
    if b"Epoch " not in output:
        return None
    last = None
    for begun in _EPOCH.finditer(output):
        last = begun
    return None if last is None else (int(last[1]), int(last[2]), last.end())


def last_bar(output: bytes) -> tuple[int, int, dict[str, float]] | None:
    """Return the last bar's step within the epoch, steps per epoch and metrics; None without a bar."""
    bars = _BAR.findall(_COLOR.sub(b"", output))
    if not bars:
        return None
    done, steps, behind = bars[-1]
    metrics: dict[str, float] = {}
    for name, value in _METRIC.findall(behind):
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
