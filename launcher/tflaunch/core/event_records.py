"""Read events from messages of agents and records, and check their fields.

The kind of a message or record is the name of the event's class in snake case. A message of an agent has the event's
fields except for ``host``.
"""

import ipaddress
import re
import typing
from collections.abc import Mapping
from typing import Any

from tflaunch.core import events
from tflaunch.core.actions import Action
from tflaunch.core.annotations import Annotation
from tflaunch.core.events import AgentEvent, Event
from tflaunch.records import read_record


def kind_of(event: type[Any]) -> str:
    """Return the name of a class of events or actions on the wire."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", event.__name__).lower()


_BY_KIND: dict[str, type[Any]] = {kind_of(event): event for event in typing.get_args(Event | Annotation)}
ACTIONS = frozenset(kind_of(action) for action in typing.get_args(Action))
"""Kinds of records that are actions."""

FROM_AGENTS = frozenset(kind_of(event) for event in typing.get_args(AgentEvent))
"""Kinds of events that agents send."""


def from_agent(host: str, message: Mapping[str, Any]) -> Event:
    """Return the event in a message of the agent on ``host``.

    Raises:
        ValueError: the message is not an agent's event, or a field is missing, of the wrong type or out of range.
    """
    if message["kind"] not in FROM_AGENTS:
        raise ValueError(f"unknown event {message['kind']!r}")
    return typing.cast("Event", from_record({**message, "host": host}))


def from_record(record: Mapping[str, Any]) -> Event | Annotation | None:
    """Return a record's event or annotation, or None; raises as `from_agent`."""
    event = _BY_KIND.get(record["kind"])
    if event is None:
        return None
    return typing.cast("Event | Annotation", _checked(read_record(event, record)))


def _checked(event: Any) -> Any:
    """Check that the fields of an event are consistent with each other."""
    if isinstance(event, events.TaskExited) and (event.code is None) == (event.signal is None):
        raise ValueError("a task exits by a code or by a signal")
    if isinstance(event, events.PeerSeen | events.OutsiderRefused):
        ipaddress.ip_address(event.source)
    if isinstance(event, events.HostJoined | events.PortsHeld):
        for address in event.addresses.split():
            ipaddress.ip_address(address)
    return event
