"""What a task spends its steps on, from TensorFlow's profile of it. Pure.

Every moment counts once: as *compute* if an op computes, else as *communication* if a collective or a transfer runs,
else as *input* if the next batch is waited for. Within a step, a moment in which TensorFlow does none of this and
schedules nothing is one in which it waits for another task: *communication*. The rest is *host*: Python, and
TensorFlow's scheduling of ops.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tflaunch.explain.xspace import Plane, read_planes

_HOST = "/host:CPU"
_DEVICE = re.compile(r"/device:(GPU|TPU):\d+")
_DEVICE_LINE = re.compile(r"[Ss]tream|XLA Ops")
_UNUSED_LINE = re.compile(r"tf_numa|GrpcWorkerEnv|grpc_|TF_eager_service")
_INPUT_LINE = re.compile(r"tf_data_")
"""Threads of tf.data: what they compute is not a part of the step, which only waits for it."""
_OP = re.compile(r"(?!EagerService:)[^\s:][^\s]*:(\w+)")
_COMMUNICATION = re.compile(
    r"Collective|Nccl|_?(?:Host)?(?:Recv|Send)$|.*(?:AllReduce|AllGather|AllToAll|ReduceScatter)"
)
_DEVICE_COMMUNICATION = re.compile(r".*nccl|.*all-?(?:reduce|gather|to-?all)|.*reduce-?scatter", re.IGNORECASE)
_DEVICE_COPY = re.compile(r".*memcpy|.*memset", re.IGNORECASE)
_INPUT = re.compile(r"IteratorGetNext|GetNextFromShard|MultiDeviceIteratorGetNext|OptionalGetNext")
_CONTAINERS = re.compile(
    r"(?:Stateful|Stateless)?(?:PartitionedCall|While|If|Case)|RemoteCall|NoOp|(?:\w*Iterator|Optional)\w*|_Arg|_Retval"
)
"""Ops that wait for others, which are recorded themselves."""
_SCHEDULING = ("ExecutorState::", "ExecutorDoneCallback", "FunctionRun", "EagerCopyToDevice")
_STEP = "EagerLocalExecute: "
_IN_STEP = "KernelAndDeviceFunc::Run"
_FUNCTION = re.compile(r"__(?:inference|forward|backward)_(\w+?)_\d+$")

Interval = tuple[int, int]
"""Begin and end."""


class Shares(NamedTuple):
    """What a task did; the shares add up to 1.

    ``steps``: how often ``function``, in which it spent most time, was called; 0 if it called none. ``seconds``: from
    the first call's begin to the last one's end, or how long anything was recorded.
    """

    compute: float
    communication: float
    input: float
    host: float
    seconds: float
    steps: int = 0
    function: str = ""

    def sentence(self) -> str:
        """Return what the task did as a text."""
        of = ("compute", "communication", "input", "host")
        listed = ", ".join(
            f"{share:.0%} {name}" for share, name in sorted(zip(self[:4], of, strict=True), reverse=True)
        )
        if not self.steps:
            return f"no step in {self.seconds:.1f} s: {listed}"
        steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
        return f"{steps} of {self.seconds / self.steps * 1000:.1f} ms ({self.function}): {listed}"


def shares_of(profile: bytes) -> Shares | None:
    """Return what a task did, None if nothing was recorded.

    Raises:
        ValueError: this is not a profile.
    """
    planes = read_planes(profile, _is_wanted)
    events = _Events()
    for plane in planes:
        if plane.name == _HOST:
            _sort_host(plane, events)
    on_devices = [plane for plane in planes if plane.name != _HOST and plane.lines]
    if on_devices:
        events.compute.clear()  # those of the host only launch kernels
    for plane in on_devices:
        _sort_device(plane, events)
    return events.shares()


def _is_wanted(plane: str, line: str) -> bool:
    if plane == _HOST:
        return _UNUSED_LINE.match(line) is None
    return _DEVICE.match(plane) is not None and _DEVICE_LINE.match(line) is not None


class _Events:
    """The intervals in which a task did what."""

    def __init__(self) -> None:
        self.compute: list[Interval] = []
        self.communication: list[Interval] = []
        self.input: list[Interval] = []
        self.scheduling: list[Interval] = []
        self.in_step: list[Interval] = []
        self.calls: dict[str, list[Interval]] = {}
        self.others: list[Interval] = []

    def shares(self) -> Shares | None:
        """Return what they add up to, None if there are none."""
        kinds = (self.compute, self.communication, self.input, self.scheduling, self.in_step)
        total = Counter({name: sum(end - begin for begin, end in calls) for name, calls in self.calls.items()})
        name = total.most_common(1)[0][0] if total else ""
        calls = self.calls.get(name, [])
        known = calls or [interval for kind in (*kinds, self.others) for interval in kind]
        if not known:
            return None
        window = min(begin for begin, _ in known), max(end for _, end in known)
        length = max(window[1] - window[0], 1)
        spent, seen, before = [], list[Interval](), 0
        for kind in kinds:
            seen = _merge([*seen, *_clip(kind, window)])
            covered = sum(end - begin for begin, end in seen)
            spent.append((covered - before) / length)
            before = covered
        compute, transfers, waits, scheduling, idle = spent
        host = scheduling + (length - before) / length
        function = _FUNCTION.search(name)
        shown = function[1] if function else name
        return Shares(compute, transfers + idle, waits, host, length / 1e12, len(calls), shown)


def _sort_host(plane: Plane, events: _Events) -> None:
    kinds = {number: _kind_of(name) for number, name in plane.names.items()}
    for line in plane.lines:
        is_input = _INPUT_LINE.match(line.name) is not None
        for number, begin, end in line.events:
            kind = kinds.get(number, "")
            if kind == "step":
                calls = events.calls.setdefault(plane.names[number].removeprefix(_STEP), [])
                calls.append((begin, end))
            elif kind == "" or (is_input and kind != "input"):
                events.others.append((begin, end))
            else:
                getattr(events, kind).append((begin, end))


def _kind_of(name: str) -> str:
    """Return the kind of an event of the host: the name of a list in `_Events`, "step", or ""."""
    name = name.partition("#")[0]
    if name.startswith(_STEP):
        return "step" if "__inference_" in name else ""
    if name == _IN_STEP:
        return "in_step"
    if name.startswith(_SCHEDULING):
        return "scheduling"
    if _INPUT.match(name):
        return "input"
    op = _OP.fullmatch(name)
    if op is None or "::" in name:
        return ""
    if _INPUT.match(op[1]):
        return "input"
    if _COMMUNICATION.match(op[1]):
        return "communication"
    return "" if _CONTAINERS.fullmatch(op[1]) else "compute"


def _sort_device(plane: Plane, events: _Events) -> None:
    for line in plane.lines:
        for number, begin, end in line.events:
            name = plane.names.get(number, "")
            if _DEVICE_COMMUNICATION.match(name):
                events.communication.append((begin, end))
            elif not _DEVICE_COPY.match(name):
                events.compute.append((begin, end))


def _clip(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    first, last = window
    return [(max(begin, first), min(end, last)) for begin, end in intervals if begin < last and end > first]


def _merge(intervals: Sequence[Interval]) -> list[Interval]:
    """Return the same times without overlaps, in order."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = merged[-1][0], end
        else:
            merged.append((begin, end))
    return merged
