"""Keep an attempt's last output for its failure signature; read Keras progress.

Progress is parsed for programs that report nothing through TFLAUNCH_PROGRESS. Both generations of Keras draw a bar,
which backspaces redraw in place::

    120/469 [=====>........................] - ETA: 3s - loss: 0.3120 - accuracy: 0.9012     (tf_keras 2.21)
    120/469 ━━━━━━━━━━━━━━━━━━━━ 3s 10ms/step - accuracy: 0.9012 - loss: 0.3120              (Keras 3)
    469/469 - 3s - loss: 0.3120 - accuracy: 0.9012 - 3s/epoch - 6ms/step                     (verbose=2)

``Epoch 3/10`` is on a line before the bar, except in a `fit` of one epoch. `evaluate` draws the same bar without it.
So a bar without that line is another epoch only if no line ever came and it has as many steps as the first bar.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Dict, NamedTuple, Optional

from tflaunch_worker import failures
from tflaunch_worker.agent.progress import LARGEST, MOST_METRICS, ProgressStats

KEPT = 16 * 1024
"""Number of bytes kept: enough for a TensorFlow traceback and what its threads write after it."""

_LONGEST_BAR = 2048  # bytes; a bar may be split between two reads


class LastOutput:
    """The end of an attempt's output, and the last bar of its training."""

    def __init__(self) -> None:
        self._tail = b""
        self._shown = Shown()
        self._stats = ProgressStats()
        self._step: object = None
        self._open = b"\n"  # the last line as far as it came, with what delimits it

    def note(self, data: bytes) -> None:
        """Add output of the task; cheap, because all output passes through here."""
        self._tail = (self._tail + data[-KEPT:])[-KEPT:]
        text = self._open + data
        end = max(text.rfind(b"\n"), text.rfind(b"\b"), 0)
        if len(text) - end > _LONGEST_BAR:
            end = len(text)
        self._shown = read_bars(self._shown, text[: end + 1])
        self._open = text[end:]

    def progress(self) -> dict[str, object]:
        """Return epoch, epochs, steps_per_epoch, step and metrics, as far as Keras shows."""
        shown = read_bars(self._shown, self._open)
        if shown.epoch == 0:
            return {}
        known: dict[str, object] = {"epoch": shown.epoch}
        if shown.epochs is not None:
            known["epochs"] = shown.epochs
        if shown.steps:
            step = (shown.epoch - 1) * shown.steps + shown.done
            known.update({"step": step, "steps_per_epoch": shown.steps, "metrics": shown.metrics})
        return known

    def progress_at(self, now: float) -> dict[str, object]:
        """Return `progress` with the speed between calls; ``now`` is in seconds."""
        known = self.progress()
        if not known:
            return {}
        if "step" in known and known["step"] != self._step:
            self._step = known["step"]
            self._stats.take(json.dumps({"step": known["step"]}).encode("ascii"), now)
        speed = self._stats.known(now).get("steps_per_second")
        return {**known, "is_from_output": True, **({} if speed is None else {"steps_per_second": speed})}

    def failure(self) -> str:
        """Return the signature of the failure (see `failures.failure_signature`)."""
        return failures.failure_signature(self._tail)


_COLOR = rb"\x1b\[[0-9;]*m"
_SHOWN = re.compile(
    rb"([\r\n\b])(?:Epoch (?P<epoch>\d{1,7})/(?P<epochs>\d{1,7})(?=\r?\n)"
    rb"|\r? *(?P<done>\d{1,9})/(?P<steps>\d{1,9}) (?:\[[=>.]+\]|(?:\xe2\x94\x81)+|- \d+m?s)(?P<behind>[^\r\n\b]*))"
)
_METRIC = rb" - ([A-Za-z]\w{0,63}): ([-+]?\d+(?:\.\d*)?(?:e[-+]?\d{1,3})?)(?= |$)"  # not "ETA: 3s"


class Shown(NamedTuple):
    """Progress in Keras output; ``epoch`` 0: none; ``epochs`` None: not shown."""

    epoch: int = 0
    epochs: Optional[int] = None
    done: int = 0
    steps: int = 0
    metrics: Dict[str, float] = {}  # noqa: RUF012  # never changed
    is_new: bool = True
    """Whether the epoch has drawn no bar with metrics yet; those of the epoch before are still the last ones known."""
    is_over: bool = False
    """Whether a bar of something else came, such as an evaluation, so that only an epoch's line goes on."""


def read_bars(shown: Shown, output: bytes) -> Shown:
    """Return the bar after ``output``, which begins with the end of a line."""
    if b" - " not in output and b"Epoch " not in output:
        return shown
    for found in _SHOWN.finditer(re.sub(_COLOR, b"", output)):
        if found["epoch"]:
            shown = _with_epoch(shown, int(found["epoch"]), int(found["epochs"]))
        elif not shown.is_over:
            bar = int(found["done"]), int(found["steps"])
            shown = _with_bar(shown, bar, _metrics(found["behind"]), is_redrawn=found[1] == b"\b")
    return shown


def _with_epoch(shown: Shown, epoch: int, epochs: int) -> Shown:
    if epoch != shown.epoch + 1:
        return Shown(epoch, epochs)
    return shown._replace(epoch=epoch, epochs=epochs, done=0, is_new=True, is_over=False)


def _with_bar(shown: Shown, bar: tuple[int, int], metrics: dict[str, float], *, is_redrawn: bool) -> Shown:
    done, steps = bar
    if shown.is_new and (shown.epoch or metrics):
        known = metrics or shown.metrics
        return shown._replace(epoch=shown.epoch or 1, done=done, steps=steps, metrics=known, is_new=not metrics)
    if steps != shown.steps:
        return shown
    if done >= shown.done and (is_redrawn or shown.done < steps):
        return shown._replace(done=done, metrics=metrics)
    if shown.epochs is not None:
        return shown._replace(is_over=True)
    return shown._replace(epoch=shown.epoch + 1, done=done, metrics=metrics) if metrics else shown


def _metrics(text: bytes) -> dict[str, float]:
    """Return the metrics behind a bar, without numbers that cannot be sent."""
    found = ((name.decode("ascii"), float(value)) for name, value in re.findall(_METRIC, text))
    return dict(islice(((name, value) for name, value in found if abs(value) < LARGEST), MOST_METRICS))
