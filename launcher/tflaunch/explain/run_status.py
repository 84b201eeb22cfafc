"""The status of a run: what `ps`, the display in a terminal, the metrics and the control socket tell about it. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args, get_type_hints

from tflaunch.explain.cluster_formation import Forming
from tflaunch.plan.tensorboard import Reach
from tflaunch_worker import fields


class HostStatus(NamedTuple):
    """The status of a host."""

    host: str
    state: str
    reason: str | None = None
    silence: float | None = None
    """Seconds since its last message."""
    lease_left: float | None = None
    """How many seconds its tasks may go on without a supervisor; known only if the supervisor was killed."""
    is_spare: bool | None = None
    """Whether it has no tasks, and may take the place of a lost host; None if the job has no spare hosts."""
    replaces: str | None = None
    """The host of the spec in whose place it is."""


class TaskStatus(NamedTuple):
    """The status of a task. None means what is not known or does not apply."""

    task: str
    role: str
    host: str
    address: str | None
    state: str
    pid: int | None
    attempt: int
    exit_code: int | None = None
    signal: int | None = None
    preload: str | None = None
    since: float | None = None
    listening: bool | None = None
    waiting_since: float | None = None
    cpu_seconds: float | None = None
    rss_bytes: float | None = None
    shared_bytes: float | None = None
    gpu_percent: float | None = None
    gpu_bytes: float | None = None
    step: float | None = None
    steps_per_second: float | None = None
    epoch: float | None = None
    epochs: float | None = None
    steps_per_epoch: float | None = None
    metrics: Mapping[str, float] | None = None
    progress_age: float | None = None
    """Seconds between the last report of the program and this status."""
    is_progress_from_output: bool | None = None
    """Whether the program reports no progress, and that of Keras was read from its output."""
    cpu_percent: float | None = None
    """Recent CPU usage, in percent of one CPU."""
    refused_connections: float | None = None
    """Number of connections to its port from outside the cluster that were refused, None for none."""
    moved_from: str | None = None
    """The host of the spec on which it would be, if that had not been lost."""
    breakpoint: str | None = None
    """Where it waits at a `breakpoint()` for `tflaunch debug`."""
    memory_growth: float | None = None
    """Bytes per second by which its memory grows steadily, None if it does not."""
    memory_full_at: float | None = None
    """When the memory of its host is full at that rate, in seconds since the epoch."""
    last_line: str | None = None
    """The last line of its output; the supervisor leaves it out, as readers have the log."""


class CheckpointStatus(NamedTuple):
    """The newest checkpoint that was copied to the run's directory; ``hosts`` have it, too."""

    name: str
    step: int | None
    """The number in its name."""
    since: float
    """When the copy was complete, in seconds since the epoch."""
    hosts: tuple[str, ...]


class Status(NamedTuple):
    """The status of a run; all times, also that in ``forming``, are in seconds since the epoch."""

    run: str
    name: str
    phase: str
    state: str
    attempt: int
    restarts: int
    restart: str | None
    max_restarts: int
    last_failure: str | None
    exit_code: int | None
    culprit: str | None
    reason: str | None
    forming: Forming | None
    supervisor: str
    """``alive`` or ``dead``."""
    started: float
    logs: str
    tensorboard: Reach | None
    hosts: tuple[HostStatus, ...]
    tasks: tuple[TaskStatus, ...]
    outsiders: tuple[str, ...] = ()
    """Addresses outside the cluster whose connections to tasks' ports were refused."""
    checkpoint: CheckpointStatus | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the status as the JSON that `tflaunch ps --json` prints."""
        return {
            **self._asdict(),
            "forming": None if self.forming is None else self.forming._asdict(),
            "tensorboard": None if self.tensorboard is None else self.tensorboard._asdict(),
            "checkpoint": None if self.checkpoint is None else self.checkpoint._asdict(),
            "hosts": [host._asdict() for host in self.hosts],
            "tasks": [task._asdict() for task in self.tasks],
        }


def read_status(value: object) -> Status:
    """Return the status in JSON that `Status.as_json` made, maybe in another version of tflaunch.

    Fields that are missing are None if they may be, and unknown ones are ignored.

    Raises:
        ValueError: a field is missing or has another type.
    """
    known = _object("status", value)
    forming, board, checkpoint = known.get("forming"), known.get("tensorboard"), known.get("checkpoint")
    return Status(
        **_plain_fields(Status, known, "forming", "tensorboard", "hosts", "tasks", "outsiders", "checkpoint"),
        forming=None if forming is None else _read_forming(_object("forming", forming)),
        tensorboard=None if board is None else Reach(**_plain_fields(Reach, _object("tensorboard", board))),
        hosts=tuple(HostStatus(**_plain_fields(HostStatus, _object("host", x))) for x in fields.items(known, "hosts")),
        tasks=tuple(_read_task(_object("task", task)) for task in fields.items(known, "tasks")),
        outsiders=tuple(fields.texts(known, "outsiders")) if "outsiders" in known else (),
        checkpoint=None if checkpoint is None else _read_checkpoint(_object("checkpoint", checkpoint)),
    )


def _read_checkpoint(known: dict[str, Any]) -> CheckpointStatus:
    hosts = tuple(fields.texts(known, "hosts"))
    return CheckpointStatus(**_plain_fields(CheckpointStatus, known, "hosts"), hosts=hosts)


def _read_forming(known: dict[str, Any]) -> Forming:
    missing, listening = tuple(fields.texts(known, "missing")), tuple(fields.texts(known, "listening"))
    return Forming(missing=missing, listening=listening, **_plain_fields(Forming, known, "missing", "listening"))


def _read_task(known: dict[str, Any]) -> TaskStatus:
    metrics = known.get("metrics")
    if metrics is not None and not all(type(number) in (int, float) for number in _object("metrics", metrics).values()):
        raise ValueError("'metrics' must map names to numbers")
    return TaskStatus(**_plain_fields(TaskStatus, known, "metrics"), metrics=metrics)


def _object(name: str, value: object) -> dict[str, Any]:
    return fields.mapping({name: value}, name)


def _plain_fields(kind: type[NamedTuple], known: Mapping[str, Any], *nested: str) -> dict[str, Any]:
    """Return the fields of ``kind`` other than ``nested``, whose values must have the annotated types."""
    found = {name: known.get(name) for name in kind._fields if name not in nested}
    for name, value in found.items():
        allowed = _types_of(kind)[name]
        if type(value) not in allowed and not (type(value) is int and float in allowed):
            words = " or ".join("null" if each is type(None) else each.__name__ for each in allowed)
            raise ValueError(f"{name!r} must be {words}, not {repr(value)[:60]}")
    return found


@functools.cache
def _types_of(kind: type[NamedTuple]) -> Mapping[str, tuple[type[Any], ...]]:
    return {name: get_args(hint) or (hint,) for name, hint in get_type_hints(kind).items()}
