"""The memory of tasks, as agents report it regularly; see `tflaunch_worker.agent.vitals`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tflaunch_worker import fields, memory_series

_MOST_ATTEMPTS = 2**31


class TaskVitals(NamedTuple):
    """A measurement of a task: ``rss`` is the size of its memory, in bytes.

    ``history`` are earlier sizes: their age in seconds, and bytes; oldest first.
    """

    task: str
    attempt: int
    rss: int
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
        history=() if known.get("history") is None else _history(fields.items(known, "history")),
    )


def _history(points: list[Any]) -> tuple[tuple[float, float], ...]:
    found = []
    for point in points[: memory_series.MOST]:
        match point:
            case [age, size]:
                found.append((fields.number({"age": age}, "age", 0), fields.number({"size": size}, "size", 0)))
            case _:
                raise ValueError("'history' must hold pairs of an age and a size")
    return tuple(sorted(found, reverse=True))
