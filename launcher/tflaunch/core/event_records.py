"""Read events from messages of agents and from records of the journal, and check their fields.

The kind of a message or record is the name of the event's class in snake case. A message of an agent has the event's
fields except for ``host``.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from tflaunch.core.events import (
    BreakpointLeft,
    BreakpointReached,
    Event,
    FilesRefused,
    FilesSynced,
    HostJoined,
    HostLeaving,
    Line,
    NamesResolved,
    NetworkRefused,
    OutputResumed,
    OutputStalled,
    OutsiderRefused,
    PeerSeen,
    PeersProbed,
    PortOpened,
    PortsHeld,
    PortsRefused,
    PortUnfenced,
    Range,
    TaskExited,
    TaskGone,
    TaskNotStarted,
    TaskStarted,
)
from tflaunch.printable import printable

_SAID_BY_AGENTS = (
    HostLeaving,
    FilesSynced,
    FilesRefused,
    NamesResolved,
    PortsHeld,
    PortsRefused,
    NetworkRefused,
    PeersProbed,
    PeerSeen,
    OutsiderRefused,
    PortUnfenced,
    TaskStarted,
    TaskNotStarted,
    PortOpened,
    OutputStalled,
    OutputResumed,
    BreakpointReached,
    BreakpointLeft,
    TaskExited,
    TaskGone,
)


def is_from_agent(event: Event) -> bool:
    """Whether an agent sent this event, with a number."""
    return isinstance(event, _SAID_BY_AGENTS)


def kind_of(event: type[Any]) -> str:
    """Return the name of a class of events or actions, as used on the wire and in the journal."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", event.__name__).lower()


_BY_KIND: dict[str, type[Any]] = {kind_of(event): event for event in typing.get_args(Event)}
_AGENT_KINDS = frozenset(kind_of(event) for event in _SAID_BY_AGENTS)


def is_of_agents(kind: str) -> bool:
    """Whether agents send events of this kind."""
    return kind in _AGENT_KINDS


def from_agent(host: str, message: Mapping[str, Any]) -> Event:
    """Return the event in a message of the agent on ``host``.

    Raises:
        ValueError: the message is not an agent's event, or a field is missing, of the wrong type or out of range.
    """
    if message["kind"] not in _AGENT_KINDS:
        raise ValueError(f"unknown event {message['kind']!r}")
    event = from_record({**message, "host": host})
    assert event is not None
    return event


def from_record(record: Mapping[str, Any]) -> Event | None:
    """Return the event in a record of the journal, None if the record is something else.

    Raises:
        ValueError: a field is missing, of the wrong type or out of range.
    """
    event = _BY_KIND.get(record["kind"])
    if event is None:
        return None
    known = {**event._field_defaults, **record}  # an earlier version wrote fewer fields
    return typing.cast(
        "Event", _checked(event(*[check(name, known.get(name)) for name, check in _checks(record["kind"])]))
    )


def _checked(event: Any) -> Any:
    """Check that the fields of an event are consistent with each other."""
    if isinstance(event, TaskExited) and (event.code is None) == (event.signal is None):
        raise ValueError("a task exits by a code or by a signal")
    if isinstance(event, PeerSeen | OutsiderRefused):
        ipaddress.ip_address(event.source)
    if isinstance(event, HostJoined | PortsHeld):
        for address in event.addresses.split():
            ipaddress.ip_address(address)
    return event


_Check = Callable[[str, Any], Any]
"""Takes a field's name and value, returns the value as stored in the event; raises ValueError."""


@functools.cache
def _checks(kind: str) -> tuple[tuple[str, _Check], ...]:
    """Return the name and the check of each field of a kind of event."""
    return tuple((name, _check_of(declared)) for name, declared in _BY_KIND[kind].__annotations__.items())


def _check_of(declared: Any) -> _Check:
    """Return the check for a declared type."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is Annotated:
        kind, limit = arguments
        return _line(limit) if isinstance(limit, Line) else _number(kind, limit)
    if origin is dict:
        return _mapping(_check_of(arguments[1]))
    if arguments:  # X | None
        return _optional(_check_of(arguments[0]))
    return _exactly(declared)


def _line(limit: Line) -> _Check:
    def check(name: str, value: Any) -> str:
        if type(value) is not str:
            raise ValueError(f"field {name!r} must be text")
        return printable(value, limit.longest)

    return check


def _number(kind: type, limit: Range) -> _Check:
    kinds = (int,) if kind is int else (int, float)

    def check(name: str, value: Any) -> Any:
        if type(value) not in kinds or not limit.least <= value <= limit.most:  # rejects NaN too
            kind_name = "an integer" if kind is int else "a number"
            raise ValueError(f"field {name!r} must be {kind_name} from {limit.least:.0f} to {limit.most:.0f}")
        return kind(value)

    return check


def _mapping(check_value: _Check) -> _Check:
    def check(name: str, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise ValueError(f"field {name!r} must be an object")
        return {key: check_value(name, item) for key, item in value.items()}

    return check


def _optional(check_value: _Check) -> _Check:
    return lambda name, value: None if value is None else check_value(name, value)


def _exactly(kind: type) -> _Check:
    def check(name: str, value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(f"field {name!r} must be of type {kind.__name__}")
        return value

    return check
