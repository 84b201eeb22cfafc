"""Accept from an agent only what it was asked for, and each of its events once."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from typing import Annotated, Any, NamedTuple

from tflaunch.core import events
from tflaunch.core.events import Event
from tflaunch.records import Range, read_record
from tflaunch_worker.agent.network import fence, netlink
from tflaunch_worker.schema import list_of, text

_MOST_ADDRESSES = 256


def _own_addresses(name: str, value: object) -> str:
    """Check the addresses of a host, and return them separated by spaces."""
    return " ".join(map(_own_address, list_of(text())(name, value)[:_MOST_ADDRESSES]))


class Pulse(NamedTuple):
    """The reply to a keep-alive.

    ``obeyed`` is the number of the last command that was executed; ``sent`` is the time of our clock in the message
    that it answers, and ``time`` that of the agent's own clock, both in seconds.
    """

    obeyed: events.Count
    sent: events.Moment
    time: events.Moment


class Greeting(NamedTuple):
    """What a reply to ``hello`` has beside a `Pulse`.

    ``is_leaving``: the agent is stopping its tasks on its own. ``streams``: task and attempt of every output it holds.
    ``addresses``: those of its host, separated by spaces. ``no_way_out`` and ``gpus`` are as in `events.HostJoined`.
    """

    is_leaving: bool
    streams: tuple[tuple[events.Name, events.Attempt], ...]
    addresses: Annotated[str, _own_addresses]
    no_way_out: events.Reason = ""
    gpus: Annotated[int, Range(0, 10_000)] | None = None


def read_pulse(message: Mapping[str, Any], last_order: int, now: float) -> Pulse:
    """Return the pulse in a message of an agent whose last command has this number, at a time of our clock.

    Raises:
        ValueError: the message is malformed, or answers a message that was never sent.
    """
    pulse = read_record(Pulse, message)
    if pulse.obeyed > last_order or not 0 <= pulse.sent <= now:
        raise ValueError("it answers what it was not sent")
    return pulse


_EVENTS_AT_ONCE = 1000  # that an agent may report, apart from those of its tasks
_EVENTS_PER_ATTEMPT = 20
_EVENTS_PER_SECOND = 10  # for events that recur over time
_ASKED = {"hold_ports": "ports", "look_up_names": "names", "probe_peers": "peers"}
"""Commands that ask about names, and the fields that hold these."""


class ExpectedReplies:
    """Remembers the commands sent to an agent, as far as its events answer them.

    ``has_offered_files``: the user's code was offered.
    """

    def __init__(self, now: float) -> None:
        """Expect nothing yet of an agent that starts at ``now``, in seconds of our clock."""
        self._began_at = now
        self._event_count = 0
        self._started: set[tuple[str, int]] = set()
        self._left_files: dict[tuple[str, int], int] = {}
        self._asked: dict[str, set[str]] = {kind: set() for kind in _ASKED}
        self._has_private_network = False
        self.has_offered_files = False

    def note(self, kind: str, fields: dict[str, Any]) -> None:
        """Remember a command by its kind and fields."""
        if kind in _ASKED:
            self._asked[kind].update(fields[_ASKED[kind]])
            self._has_private_network = self._has_private_network or bool(fields.get("private"))
        elif kind == "start_task":
            self._started.add((fields["task"], fields["attempt"]))
            for name, most in fields.get("left_files", {}).items():
                self._left_files[(f"{fields['task']}/{name}", fields["attempt"])] = most

    def has_started(self, task: str, attempt: int) -> bool:
        """Return whether the agent was asked to start this attempt."""
        return (task, attempt) in self._started

    def most_bytes(self, source: str, attempt: int) -> float:
        """Return how many bytes the agent may send of an attempt's output, or of a file that it leaves.

        -1 if it was asked for none; ``source``: the task, or ``TASK/NAME`` for a file.
        """
        is_started = self.has_started(source, attempt)
        return math.inf if is_started else self._left_files.get((source, attempt), -1)

    def check(self, event: events.Event) -> None:
        """Check that an event answers a command that the agent was sent.

        Raises:
            ValueError: the agent was not asked for it, or cannot vouch for an address in it.
        """
        addresses = event.addresses.split() if isinstance(event, events.PortsHeld) else ()
        for address in [event.source] if isinstance(event, events.PeerSeen) else addresses:
            _own_address(address)
        if isinstance(event, events.TaskEvent) and not self.has_started(event.task, event.attempt):
            about = f"attempt {event.attempt} of {event.task[:60]!r}"
            raise ValueError(f"it reports about {about}, which it was not asked for")
        match event:
            case events.PortsHeld(ports=told) | events.PortsRefused(refused=told):
                self._check_names("hold_ports", "ports of", told)
            case events.NetworkRefused() if not self._has_private_network:
                raise ValueError("it was not asked for a private network")
            case events.NamesResolved(found=told):
                self._check_names("look_up_names", "the names", told)
            case events.PeersProbed(failed=told):
                self._check_names("probe_peers", "the peers", told)
            case events.OutsiderRefused(task=task) | events.PortUnfenced(task=task):
                self._check_names("hold_ports", "the fence of", [task])
            case events.PeerSeen() if not self._asked["probe_peers"]:
                raise ValueError("it was not asked to look for peers")
            case events.FilesSynced() | events.FilesRefused() if not self.has_offered_files:
                raise ValueError("it was not offered any files")

    def _check_names(self, kind: str, what: str, told: Collection[str]) -> None:
        unknown = sorted(name[:60] for name in told if name not in self._asked[kind])
        if unknown:
            raise ValueError(f"it was not asked for {what} {', '.join(map(repr, unknown[:3]))}")

    def count_event(self, now: float) -> None:
        """Limit how many events an agent can make us record.

        Raises:
            ValueError: the agent exceeds the limit.
        """
        self._event_count += 1
        over_time = _EVENTS_PER_SECOND * (now - self._began_at)
        if self._event_count > _EVENTS_AT_ONCE + _EVENTS_PER_ATTEMPT * len(self._started) + over_time:
            raise ValueError("it reports more events than its tasks can cause")


def _own_address(text: str) -> str:
    """Return an address, or raise ValueError if a host cannot vouch for it."""
    address = fence.read_address(text)
    known = ip_address(address)
    is_shared = known.is_unspecified or known.is_multicast or address == "255.255.255.255"
    if is_shared or (known.is_loopback and address not in netlink.LOOPBACK):
        raise ValueError(f"it cannot vouch for connections from {address}")
    return address


class EventCursor:
    """Numbers of events: ``seen``, the last received; ``recorded``, in the journal."""

    def __init__(self) -> None:
        self.seen = 0
        self.recorded = 0
        self._unrecorded: deque[tuple[Event, int]] = deque()

    def note(self, event: Event, number: int) -> None:
        """Count a received event."""
        self.seen = number
        self._unrecorded.append((event, number))

    def recall(self) -> None:
        """Count an event that an earlier supervisor received and recorded."""
        self.seen += 1
        self.recorded = self.seen

    def record(self, event: Event) -> bool:
        """Note that an event is in the journal; return whether it is this agent's."""
        if not self._unrecorded or self._unrecorded[0][0] is not event:
            return False
        _, self.recorded = self._unrecorded.popleft()
        return True
