"""Recognize what TensorFlow writes whenever it starts."""

import re
from collections.abc import Iterable

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
    _INFO + rb"eager_service_impl\.cc:\d+\] ",
    _ANY + rb"type_inference\.cc:\d+\] Type inference failed\.",
    _INFO + rb"kernel_and_device\.cc:\d+\] Ignoring error status when releasing ",
    rb"/\S+/dataset_ops\.py:\d+: UserWarning: To make it possible to preserve tf\.data options across ",
    rb'  warnings\.warn\("To make it possible to preserve tf\.data options across "',
    rb"/job:\w+/replica:\d+/task:\d+$",  # one of the tasks that the coordination service waits for
)
_MESSAGE = rb"(?m)^(?:" + rb"|".join(_MESSAGES) + rb")"
_BLOCKS = (
    (re.compile(rb".*eager_service_impl\.cc:\d+\] SessionOptions:"), re.compile(rb"$")),
    (re.compile(rb".*type_inference\.cc:\d+\] "), re.compile(rb"\twhile inferring type of node ")),
)
"""The first and the last line of messages that have protocol buffers in text form between them."""
_LONGEST_BLOCK = 60  # lines
_OF_A_BLOCK = re.compile(rb"\s*(?:\w+ \{|\}|\w+: \S.*)?$")


class _Filter:
    """Finds the messages in the output of one task."""

    def __init__(self) -> None:
        self.block: tuple[re.Pattern[bytes], int] | None = None
        """Of a message of several lines: its last line, and how many more it may have."""

    def hides(self, line: bytes) -> bool:
        """Return whether the next line belongs to a message."""
        block, self.block = self.block, None
        if block is not None:
            last, left = block
            if last.match(line):
                return True
            if left and _OF_A_BLOCK.match(line):
                self.block = last, left - 1
                return True
        # Any other line ends a message of several lines: better a rest of it is shown than what a program says hidden.
        if re.match(_MESSAGE, line) is None:
            return False
        self.block = next(((last, _LONGEST_BLOCK) for first, last in _BLOCKS if first.match(line)), None)
        return True


def own_lines(lines: Iterable[str]) -> list[str]:
    """Return lines without these messages."""
    own = _Filter()
    return [line for line in lines if not own.hides(line.encode("utf-8", "replace"))]


class StartupMessages:
    """Removes these messages from the output of a run's tasks."""

    def __init__(self) -> None:
        """Begin with the first line of a run."""
        self._filters: dict[str, _Filter] = {}
        self._has_hidden = False
        self._has_noted = False

    def without(self, task: str, lines: bytes) -> bytes | None:
        """Return lines of a task without these messages; None if none is left."""
        own = self._filters.setdefault(task, _Filter())
        if own.block is None and re.search(_MESSAGE, lines) is None:
            return lines
        self._has_hidden = True
        kept = [line for line in lines.split(b"\n") if not own.hides(line)]
        return b"\n".join(kept) if kept else None

    def note(self) -> bytes:
        """Return a note after the first message was removed; otherwise nothing."""
        if self._has_noted or not self._has_hidden:
            return b""
        self._has_noted = True
        return f"tflaunch: {NOTE}\n".encode()
