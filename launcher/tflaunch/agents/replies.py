"""Parse an agent's replies, other than events and output, into checked, typed values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tflaunch_worker import fields

_LONGEST_NAME = 1000
_MOST_ATTEMPTS = 2**31


class Pulse(NamedTuple):
    """The fields of every reply to a keep-alive.

    ``obeyed`` is the number of the last command that was executed; ``sent`` is the time of our clock in the message
    that it answers, and ``time`` that of the agent's own clock, both in seconds.
    """

    obeyed: int
    sent: float
    time: float


class Greeting(NamedTuple):
    """The reply to ``hello``.

    ``is_leaving``: the agent is stopping its tasks on its own. ``streams``: task and attempt of every output it holds.
    """

    is_leaving: bool
    streams: tuple[tuple[str, int], ...]
    pulse: Pulse


class Sight(NamedTuple):
    """The reply to ``look``: live tasks mapped to attempt and PID, and the seconds left of the lease."""

    tasks: dict[str, tuple[int, int]]
    lease_left: float


def read_pulse(message: Mapping[str, Any], last_order: int, now: float) -> Pulse:
    """Return the pulse in a message.

    Args:
        message: the agent's message.
        last_order: the number of the last command sent to it.
        now: the time of our clock.

    Raises:
        ValueError: the message is malformed, or answers a message that was never sent.
    """
    obeyed = fields.integer(message, "obeyed", 0, last_order)
    return Pulse(obeyed, fields.number(message, "sent", 0, now), fields.number(message, "time"))


def read_greeting(message: Mapping[str, Any], last_order: int, now: float) -> Greeting:
    """Return the greeting in a message; arguments and errors are those of `read_pulse`."""
    streams = []
    for stream in fields.items(message, "streams"):
        match stream:
            case [str(task), attempt] if type(attempt) is int and 0 <= attempt < _MOST_ATTEMPTS:
                streams.append((task[:_LONGEST_NAME], attempt))
            case _:
                raise ValueError("'streams' must hold pairs of a task and an attempt")
    return Greeting(fields.flag(message, "is_leaving"), tuple(streams), read_pulse(message, last_order, now))


def read_sight(message: Mapping[str, Any]) -> Sight:
    """Return the reply to ``look`` in a message.

    Raises:
        ValueError: the message is malformed.
    """
    if message["kind"] != "seen":
        raise ValueError(f"it answered with {message['kind'][:40]!r}")
    tasks = {}
    for task, known in fields.mapping(message, "tasks").items():
        if not isinstance(known, dict):
            raise ValueError("'tasks' must map names to objects")  # noqa: TRY004 - what a link says is a value
        attempt = fields.integer(known, "attempt", 0, _MOST_ATTEMPTS)
        tasks[task] = attempt, fields.integer(known, "pid", 0, 2**31)
    return Sight(tasks, fields.number(message, "lease_left", 0))
