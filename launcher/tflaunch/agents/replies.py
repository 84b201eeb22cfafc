"""Record what an agent was sent, to send it again, and take each event once."""

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from ipaddress import ip_address
from typing import Annotated, Any, NamedTuple

from tflaunch.agents.calls import Frame
from tflaunch.core import events
from tflaunch.core.states import CODE, NETWORK
from tflaunch.records import Range, read_record
from tflaunch_worker import wire
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
    """Return the pulse in an agent's message, which came at ``now`` on our clock.

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
    """Remembers the commands sent to an agent, as far as its events answer them."""

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
        """Return how many bytes an agent may send of a task's output or of a left file.

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
            case events.NamesResolved(found=told):
                self._check_names("look_up_names", "the names", told)
            case events.PeersProbed(failed=told):
                self._check_names("probe_peers", "the peers", told)
            case events.OutsiderRefused(task=task) | events.PortUnfenced(task=task):
                self._check_names("hold_ports", "the fence of", [task])
            case events.PeerSeen() if not self._asked["probe_peers"]:
                raise ValueError("it was not asked to look for peers")
            case events.HostPrepared(what=what) | events.HostRefused(what=what):
                is_refusal = isinstance(event, events.HostRefused)
                asked = {CODE: self.has_offered_files, NETWORK: self._has_private_network and is_refusal}
                if not asked.get(what):
                    raise ValueError(f"it was not asked for its {what}")

    def _check_names(self, kind: str, what: str, told: Collection[str]) -> None:
        unknown = sorted(name[:60] for name in told if name not in self._asked[kind])
        if unknown:
            raise ValueError(f"it was not asked for {what} {', '.join(map(repr, unknown[:3]))}")

    def count_event(self, now: float) -> None:
        """Raise ValueError if an agent causes more events than its tasks can."""
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
        self._unrecorded: deque[tuple[events.Event, int]] = deque()

    def note(self, event: events.Event, number: int) -> None:
        """Count a received event."""
        self.seen = number
        self._unrecorded.append((event, number))

    def recall(self) -> None:
        """Count an event that an earlier supervisor received and recorded."""
        self.seen += 1
        self.recorded = self.seen

    def record(self, event: events.Event) -> bool:
        """Note that an event is in the journal; return whether it is this agent's."""
        if not self._unrecorded or self._unrecorded[0][0] is not event:
            return False
        _, self.recorded = self._unrecorded.popleft()
        return True


class CommandOutbox:
    """The commands sent to an agent since its start.

    ``last_bodies`` maps a kind to the last body of that kind. ``are_kept``: keep them, as the link may be restored.
    Before the first link, they are kept in any case.
    """

    def __init__(self, are_kept: bool) -> None:
        self._are_kept = are_kept
        self._has_link = False
        self._waiting: deque[tuple[int, Frame]] = deque()
        self.starts: dict[tuple[str, int], int] = {}
        """The task and number of each attempt that the agent was told to start, and that command's number."""
        self.last = 0
        """The number of the last command."""
        self.last_bodies: dict[str, bytes] = {}

    def add(self, kind: str, body: bytes = b"", /, **fields: object) -> Frame:
        """Number the next command and return its frame; agents can share a body."""
        self.last += 1
        head = wire.encode_head({"kind": kind, "order": self.last, **fields}, len(body))
        frame = (head, body) if body else (head,)
        if body:
            self.last_bodies[kind] = body
        if kind == "start_task":
            self.starts[(str(fields["task"]), int(str(fields["attempt"])))] = self.last
        if self._are_kept or not self._has_link:
            self._waiting.append((self.last, frame))
        return frame

    def forget(self, obeyed: int | None = None) -> None:
        """Discard the commands up to number ``obeyed``, or all of them without a number."""
        while self._waiting and (obeyed is None or self._waiting[0][0] <= obeyed):
            self._waiting.popleft()

    def begin_link(self) -> list[Frame]:
        """Return the frames that the agent may lack, to be sent over a new link."""
        self._has_link = True
        frames = [frame for _, frame in self._waiting]
        if not self._are_kept:
            self._waiting.clear()
        return frames

    def silent_attempts(self, obeyed: int, streams: Iterable[Iterable[object]]) -> list[tuple[str, int]]:
        """Return the attempts that the agent has started and holds no more output of.

        An earlier supervisor received their output to the end and acknowledged it. ``obeyed`` is the number of the last
        command that was executed; ``streams`` is as in `Greeting`.
        """
        kept = {tuple(stream) for stream in streams}
        return [about for about, number in self.starts.items() if number <= obeyed and about not in kept]
