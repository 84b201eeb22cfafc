"""Recognize what TensorFlow writes whenever it starts, which tells users nothing about their job."""

from __future__ import annotations

import re

NOTE = "TensorFlow's start-up messages are hidden (-v shows them, and so does `tflaunch logs`)"

# Measured with TensorFlow 2.21; the second form of the prefix is that of absl after its initialization, the third that
# of TensorFlow before 2.19.
_INFO = rb"(?:I\d{4} [\d:.]+ +\d+|\d{4}-\d\d-\d\d [\d:.]+: I) (?:[\w/.-]*/)?"
_ANY = rb"(?:[IWE]\d{4} [\d:.]+ +\d+|\d{4}-\d\d-\d\d [\d:.]+: [IWE]) (?:[\w/.-]*/)?"
_MESSAGES = (
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR",
    _INFO + rb"port\.cc:\d+\] oneDNN ",
    _INFO + rb"cpu_feature_guard\.cc:\d+\] ",
    rb"To enable the following instructions: ",
    _INFO + rb"cudart_stub\.cc:\d+\] Could not find cuda drivers",
    _ANY + rb"cuda_\w+\.cc:\d+\] failed call to cuInit: .*\(303\)$",  # there is no driver
    _ANY + rb"cuda_\w+\.cc:\d+\] Unable to register cu",
    _ANY + rb"py_utils\.cc:\d+\] TF-TRT Warning: Could not find TensorRT",
    _INFO + rb"grpc_server_lib\.cc:\d+\] Started server with target",
    _INFO + rb"coordination_service(?:_agent)?\.(?:cc|h):\d+\] ",
    _ANY + rb"generator_dataset_op\.cc:\d+\] Memory patch applied",
    _ANY + rb"dataset\.cc:\d+\] Input of GeneratorDatasetOp::Dataset will not be optimized",
    _INFO + rb"preemption_notifier\.cc:\d+\] Preemption notifier is being deleted",
    rb"/job:\w+/replica:\d+/task:\d+$",  # one of the tasks that the coordination service waits for
)
_MESSAGE = rb"(?m)^(?:" + rb"|".join(_MESSAGES) + rb")"


def is_startup_message(line: bytes) -> bool:
    """Return whether a line is one of these messages."""
    return re.match(_MESSAGE, line) is not None


class StartupMessages:
    """Removes these messages from the output of a run's tasks."""

    def __init__(self) -> None:
        """Begin with the first line of a run."""
        self._has_hidden = False
        self._has_noted = False

    def without(self, lines: bytes) -> bytes | None:
        """Return whole lines, joined by newlines, without these messages; None if nothing else is left."""
        if re.search(_MESSAGE, lines) is None:
            return lines
        self._has_hidden = True
        kept = [line for line in lines.split(b"\n") if not is_startup_message(line)]
        return b"\n".join(kept) if kept else None

    def note(self) -> bytes:
        """Return a note after the first message was removed; otherwise nothing."""
        if self._has_noted or not self._has_hidden:
            return b""
        self._has_noted = True
        return f"tflaunch: {NOTE}\n".encode()
