"""What tasks get from their hosts, as agents report it regularly; see `tflaunch_worker.agent.vitals`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tflaunch_worker import fields, memory_series

_MOST_ATTEMPTS = 2**31
_MOST_WAITS = 200
_LONGEST_WAIT = 1e6  # milliseconds
_MOST_QUEUES = 100
_LOAD = 5


class TaskLoad(NamedTuple):
    """What a task has got since its start.

    ``cpu`` and ``delay`` are seconds: CPU time, and the time in which threads were ready and had no CPU, None if it is
    unknown, or was not measured this time. ``faults`` counts major page faults; ``throttled`` are seconds in which its
    cgroup allowed no CPU.
    """

    cpu: float
    delay: float | None
    faults: int
    throttled: float
    nice: int


class SendQueue(NamedTuple):
    """A connection between two addresses on which a task's data waited for the network, and how much of the time."""

    source: str
    destination: str
    share: float


class TaskWaits(NamedTuple):
    """How the others wait for a task in collectives.

    ``samples`` counts how often its connections were looked at, and ``pending`` how often a request waited for it then,
    since its start. ``waits`` are those that ended since the last message, in milliseconds. ``rtt`` is the longest
    round trip of its connections, in microseconds, ``retransmitted`` the segments sent again; None if unknown.
    ``segments`` are all that were sent. ``queues`` are the connections on which its data waited to be sent since the
    last message.
    """

    samples: int
    pending: int
    waits: tuple[float, ...]
    rtt: int | None
    retransmitted: int | None
    segments: int = 0
    queues: tuple[SendQueue, ...] = ()


class TaskVitals(NamedTuple):
    """A measurement of a task; ``load`` and ``waits`` are None if it takes no part in collectives.

    ``history`` are earlier sizes of its memory: their age in seconds, and bytes; oldest first.
    """

    task: str
    attempt: int
    rss: int
    load: TaskLoad | None
    waits: TaskWaits | None
    history: tuple[tuple[float, float], ...]


class HostVitals(NamedTuple):
    """A measurement of the tasks of a host; ``room`` is how many bytes more they can use, None if unknown."""

    room: int | None
    tasks: tuple[TaskVitals, ...]


def read_vitals(message: Mapping[str, Any]) -> HostVitals:
    """Return the measurement in a message of an agent.

    Raises:
        ValueError: it is malformed.
    """
    room = None if message.get("room") is None else fields.integer(message, "room")
    tasks = fields.mapping(message, "tasks")
    return HostVitals(
        room, tuple(_task(task, fields.mapping({"task": known}, "task")) for task, known in tasks.items())
    )


def _task(task: str, known: Mapping[str, Any]) -> TaskVitals:
    return TaskVitals(
        task,
        attempt=fields.integer(known, "attempt", 0, _MOST_ATTEMPTS),
        rss=fields.integer(known, "rss"),
        load=None if known.get("load") is None else _load(fields.items(known, "load")),
        waits=None if known.get("samples") is None else _waits(known),
        history=() if known.get("history") is None else _history(fields.items(known, "history")),
    )


def _load(values: list[Any]) -> TaskLoad:
    if len(values) != _LOAD:
        raise ValueError(f"'load' must hold {_LOAD} figures")
    named = dict(zip(TaskLoad._fields, values, strict=True))
    return TaskLoad(
        cpu=fields.number(named, "cpu", 0),
        delay=None if named["delay"] is None else fields.number(named, "delay", 0),
        faults=fields.integer(named, "faults"),
        throttled=fields.number(named, "throttled", 0),
        nice=fields.integer(named, "nice", -20, 19),
    )


def _waits(known: Mapping[str, Any]) -> TaskWaits:
    waits = fields.items(known, "waits")[:_MOST_WAITS]
    return TaskWaits(
        samples=fields.integer(known, "samples"),
        pending=fields.integer(known, "pending"),
        waits=tuple(fields.number({"waits": wait}, "waits", 0, _LONGEST_WAIT) for wait in waits),
        rtt=None if known.get("rtt") is None else fields.integer(known, "rtt"),
        retransmitted=None if known.get("retransmitted") is None else fields.integer(known, "retransmitted"),
        segments=fields.integer(known, "segments") if "segments" in known else 0,
        queues=tuple(map(_queue, fields.items(known, "queues")[:_MOST_QUEUES])) if "queues" in known else (),
    )


def _queue(values: Any) -> SendQueue:
    match values:
        case [source, destination, share]:
            named = {"source": source, "destination": destination, "share": share}
            return SendQueue(
                fields.text(named, "source"), fields.text(named, "destination"), fields.number(named, "share", 0, 1)
            )
        case _:
            raise ValueError("'queues' must hold two addresses and a share each")


def _history(points: list[Any]) -> tuple[tuple[float, float], ...]:
    found = []
    for point in points[: memory_series.MOST]:
        match point:
            case [age, size]:
                found.append((fields.number({"age": age}, "age", 0), fields.number({"size": size}, "size", 0)))
            case _:
                raise ValueError("'history' must hold pairs of an age and a size")
    return tuple(sorted(found, reverse=True))
