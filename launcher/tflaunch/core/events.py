"""Events: everything that can happen to a job, named in the past tense.

Messages of agents map to these: the kind of a frame is the class name in snake case, and its fields
are the fields here (``host`` is added by the session that read the frame).
"""

import functools
import ipaddress
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from tflaunch.printable import printable


class Range(NamedTuple):
    """Range of a numeric field, inclusive."""

    least: float
    most: float


class Line(NamedTuple):
    """Text field of one line that is safe to print on a terminal, at most ``longest`` characters long."""

    longest: int


_LONGEST_TIME = 1e12  # seconds: 30,000 years

Attempt = Annotated[int, Range(0, 2**31)]
Count = Annotated[int, Range(0, 2**63 - 1)]
Pid = Annotated[int, Range(1, 2**31)]
Port = Annotated[int, Range(1, 65535)]
ExitCode = Annotated[int, Range(0, 255)]
SignalNumber = Annotated[int, Range(1, 64)]
Moment = Annotated[float, Range(-_LONGEST_TIME, _LONGEST_TIME)]
Seconds = Annotated[float, Range(0, _LONGEST_TIME)]
Metric = Annotated[float, Range(-(2.0**63), 2.0**63)]
Reason = Annotated[str, Line(1000)]
Addresses = Annotated[str, Line(4000)]
OwnAddresses = Annotated[str, Line(20_000)]
IpAddress = Annotated[str, Line(50)]
"""Types of fields, checked for every event that comes from an agent or a journal."""


class HostJoined(NamedTuple):
    """The agent on a host is ready.

    ``addresses`` are those of its network interfaces, separated by spaces; "" if unknown.
    """

    host: str
    addresses: OwnAddresses = ""


class HostUnreachable(NamedTuple):
    """No agent could be started on a host."""

    host: str
    reason: Reason


class LinkLost(NamedTuple):
    """The link to the agent on a host is lost; it and its tasks may still be alive."""

    host: str
    reason: Reason


class LinkRestored(NamedTuple):
    """The link to an agent is restored; ``is_leaving``: its lease has expired and it stops its tasks."""

    host: str
    is_leaving: bool


class HostLeaving(NamedTuple):
    """The agent on a host stops its tasks and exits without a request from the supervisor.

    ``is_drain``: the host is being drained, and the tasks got their grace to save.
    """

    host: str
    reason: Reason
    is_drain: bool


class HostLost(NamedTuple):
    """The agent on a host is gone, and so are all its tasks.

    ``is_faulty``: it was given up because it broke the protocol repeatedly, and would again after a restart.
    """

    host: str
    reason: Reason
    is_faulty: bool = False


class FilesSynced(NamedTuple):
    """The user's code was copied to the host, into ``directory``."""

    host: str
    directory: str = ""


class FilesRefused(NamedTuple):
    """The user's code could not be copied to the host."""

    host: str
    reason: Reason


class NamesResolved(NamedTuple):
    """What a host's resolver returned: name to its addresses, separated by spaces; "" for none."""

    host: str
    found: dict[str, Addresses]


class PortsHeld(NamedTuple):
    """A host holds these ports: task to port. ``addresses`` is as in `HostJoined`; they may have changed since."""

    host: str
    ports: dict[str, Port]
    addresses: OwnAddresses = ""


class PortsRefused(NamedTuple):
    """A host could not hold some ports: task to the reason."""

    host: str
    refused: dict[str, Reason]


class PeersProbed(NamedTuple):
    """A host has tried to reach the others' tasks; ``failed``: task to the reason."""

    host: str
    failed: dict[str, Reason]


class PeerSeen(NamedTuple):
    """Another host of the run has come from an address that the fence does not admit yet."""

    host: str
    source: IpAddress


class OutsiderRefused(NamedTuple):
    """The fence of a task has refused a connection, the first one from this address on this host."""

    host: str
    task: str
    source: IpAddress


class PortUnfenced(NamedTuple):
    """Connections from everywhere can reach a task."""

    host: str
    task: str
    reason: Reason


class TaskStarted(NamedTuple):
    """The task's program runs. ``at`` is in seconds of the supervisor's clock.

    ``preload``: the modules that were preloaded for it, or "no: " and the reason; "" if preload was not requested.
    ``tensorflow``: the version that its interpreter would import, such as ``2.21``; "" if unknown.
    ``gpus``: the number of GPUs of its host, None if unknown.
    """

    host: str
    task: str
    attempt: Attempt
    pid: Pid
    at: Moment
    preload: Reason = ""
    tensorflow: Reason = ""
    gpus: Count | None = None


class TaskNotStarted(NamedTuple):
    """The task's command could not be executed; ``code`` is 126 or 127."""

    host: str
    task: str
    attempt: Attempt
    code: ExitCode
    reason: Reason


class PortOpened(NamedTuple):
    """The task listens on its port."""

    host: str
    task: str
    attempt: Attempt


class TaskExited(NamedTuple):
    """The task's process has exited with a ``code`` or was killed by a ``signal``.

    ``at`` is in seconds of the supervisor's clock; the session converts it from the host's. ``was_told``: the agent
    had begun to stop it. ``evidence`` is what the host knows about the cause of death, for users. ``failure``
    distinguishes failures of programs (`tflaunch_worker.agent.last_output`). ``step`` and ``epoch`` are the
    progress of its training, 0 if unknown, and ``metrics`` its last reported metrics.
    """

    host: str
    task: str
    attempt: Attempt
    code: ExitCode | None
    signal: SignalNumber | None
    at: Moment
    was_told: bool = False
    evidence: Reason = ""
    failure: Reason = ""
    step: Count = 0
    epoch: Count = 0
    metrics: dict[str, Metric] = {}  # noqa: RUF012 (never changed)


class OutputStalled(NamedTuple):
    """The task has been silent for longer than ``timeouts.stall`` allows."""

    host: str
    task: str
    attempt: Attempt


class OutputResumed(NamedTuple):
    """A silent task has written output again."""

    host: str
    task: str
    attempt: Attempt


class TaskGone(NamedTuple):
    """None of the task's processes is left.

    ``checkpoint`` is the highest number of a checkpoint that the attempt has written, 0 if unknown.
    """

    host: str
    task: str
    attempt: Attempt
    checkpoint: Count = 0


class Interrupted(NamedTuple):
    """tflaunch received a signal that asks it to stop, with this number."""

    signal: SignalNumber


class StopRequested(NamedTuple):
    """The user asked from another terminal to stop the job: TERM, and KILL after ``grace`` seconds."""

    grace: Seconds


class RestartRequested(NamedTuple):
    """The user asked to restart a task, or the whole gang for ""."""

    task: str


class FaultInjected(NamedTuple):
    """A drill or the user disturbed a task or link; recorded only, the job does not react to it."""

    what: str


class Superseded(NamedTuple):
    """A host has accepted another supervisor of this run, so this one must not act any more."""

    host: str


class TimePassed(NamedTuple):
    """The deadline that the job waited for has passed (see `step.next_deadline`)."""


Event = (
    HostJoined
    | HostUnreachable
    | LinkLost
    | LinkRestored
    | HostLeaving
    | HostLost
    | FilesSynced
    | FilesRefused
    | NamesResolved
    | PortsHeld
    | PortsRefused
    | PeersProbed
    | PeerSeen
    | OutsiderRefused
    | PortUnfenced
    | TaskStarted
    | TaskNotStarted
    | PortOpened
    | OutputStalled
    | OutputResumed
    | TaskExited
    | TaskGone
    | Interrupted
    | StopRequested
    | RestartRequested
    | FaultInjected
    | Superseded
    | TimePassed
)

_SAID_BY_AGENTS = (
    HostLeaving,
    FilesSynced,
    FilesRefused,
    NamesResolved,
    PortsHeld,
    PortsRefused,
    PeersProbed,
    PeerSeen,
    OutsiderRefused,
    PortUnfenced,
    TaskStarted,
    TaskNotStarted,
    PortOpened,
    OutputStalled,
    OutputResumed,
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
