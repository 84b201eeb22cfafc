"""Everything that can happen to a job, in the past tense.

What an agent says on the wire is one of these: the kind of a frame is the class name in snake case,
and its fields are the fields here (``host`` is added by the session that read it).
"""

import functools
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from tflaunch.printable import printable


class Range(NamedTuple):
    """Which numbers a field can hold."""

    least: float
    most: float


class Line(NamedTuple):
    """A field holds one line of text that can be shown on a terminal, at most ``longest`` characters long."""

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
"""Types of fields. They are checked wherever an event comes in: from an agent, or from a journal."""


class HostJoined(NamedTuple):
    """The agent on a host is ready."""

    host: str


class HostUnreachable(NamedTuple):
    """No agent could be started on a host."""

    host: str
    reason: Reason


class LinkLost(NamedTuple):
    """The agent on a host cannot be heard; it and its tasks may live."""

    host: str
    reason: Reason


class LinkRestored(NamedTuple):
    """The agent on a host is heard again; ``is_leaving``: too late, its lease was over and it ends its tasks."""

    host: str
    is_leaving: bool


class HostLeaving(NamedTuple):
    """The agent on a host ends its tasks and itself, without having been told to.

    ``is_drain``: somebody wants the host to be free, and the tasks were given their grace to save.
    """

    host: str
    reason: Reason
    is_drain: bool


class HostLost(NamedTuple):
    """The agent on a host is gone, and so are all tasks there.

    ``is_faulty``: it was given up because it broke the protocol again and again, and would after a restart, too.
    """

    host: str
    reason: Reason
    is_faulty: bool = False


class FilesPlaced(NamedTuple):
    """The user's code is on the host, in a directory of its own."""

    host: str
    directory: str = ""


class FilesRefused(NamedTuple):
    """The user's code could not be brought to the host."""

    host: str
    reason: Reason


class NamesFound(NamedTuple):
    """What a host's resolver knows: name to its addresses, separated by blanks; "" for none."""

    host: str
    found: dict[str, Addresses]


class PortsHeld(NamedTuple):
    """A host holds these ports: task to port."""

    host: str
    ports: dict[str, Port]


class PortsRefused(NamedTuple):
    """A host cannot hold some ports: task to the reason."""

    host: str
    refused: dict[str, Reason]


class PeersTried(NamedTuple):
    """A host has tried to reach the tasks of the others; ``failed``: task to the reason."""

    host: str
    failed: dict[str, Reason]


class TaskStarted(NamedTuple):
    """The task's program runs. ``at`` is of the supervisor's clock, in seconds.

    ``preload``: the modules that had been imported for it, or "no: " and why not; "" where nobody asked for that.
    ``tensorflow``: the version that its interpreter would import, such as ``2.21``, "" where that is not known.
    ``gpus``: how many GPUs its host has, None where that is not known.
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
    """The task's process has exited: by its own ``code`` or by a ``signal``.

    ``at`` is of the supervisor's clock, in seconds: the session converts it from the host's. ``was_told``:
    the agent had begun to end it. ``evidence`` is what the host knows about the death, for people.
    ``failure`` tells failures of programs from each other (`tflaunch_worker.tasks.failure_signature`). ``step`` and
    ``epoch`` are how far its training came, 0 where that is not known, ``metrics`` what it reported last.
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


class TaskSilent(NamedTuple):
    """The task has written nothing for as long as ``timeouts.stall`` allows."""

    host: str
    task: str
    attempt: Attempt


class TaskSpoke(NamedTuple):
    """A task that was silent has written something."""

    host: str
    task: str
    attempt: Attempt


class TaskGone(NamedTuple):
    """No process of the task is left.

    ``checkpoint`` is the highest number of a checkpoint that the attempt has written, 0 where none is known.
    """

    host: str
    task: str
    attempt: Attempt
    checkpoint: Count = 0


class Interrupted(NamedTuple):
    """The user asked for the end: the number of the signal that tflaunch got."""

    signal: SignalNumber


class StopAsked(NamedTuple):
    """The user asked for the end from another terminal: TERM, and KILL after ``grace`` seconds."""

    grace: Seconds


class RestartAsked(NamedTuple):
    """The user wants a task to start anew, or for "" all that train."""

    task: str


class Struck(NamedTuple):
    """A drill, or the user from another terminal, did something to a task or link; the job shall not know."""

    what: str


class Superseded(NamedTuple):
    """A host has another supervisor of this run since: this one must do nothing more."""

    host: str


class TimePassed(NamedTuple):
    """Nothing happened until the time that the job waited for."""


Event = (
    HostJoined
    | HostUnreachable
    | LinkLost
    | LinkRestored
    | HostLeaving
    | HostLost
    | FilesPlaced
    | FilesRefused
    | NamesFound
    | PortsHeld
    | PortsRefused
    | PeersTried
    | TaskStarted
    | TaskNotStarted
    | PortOpened
    | TaskSilent
    | TaskSpoke
    | TaskExited
    | TaskGone
    | Interrupted
    | StopAsked
    | RestartAsked
    | Struck
    | Superseded
    | TimePassed
)

_SAID_BY_AGENTS = (
    HostLeaving,
    FilesPlaced,
    FilesRefused,
    NamesFound,
    PortsHeld,
    PortsRefused,
    PeersTried,
    TaskStarted,
    TaskNotStarted,
    PortOpened,
    TaskSilent,
    TaskSpoke,
    TaskExited,
    TaskGone,
)


def is_from_agent(event: Event) -> bool:
    """Whether an agent said this, and numbered it."""
    return isinstance(event, _SAID_BY_AGENTS)


def kind_of(event: type[Any]) -> str:
    """Return the name of a kind of event or action, as the wire and the journal write it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", event.__name__).lower()


_BY_KIND: dict[str, type[Any]] = {kind_of(event): event for event in typing.get_args(Event)}
_AGENT_KINDS = frozenset(kind_of(event) for event in _SAID_BY_AGENTS)


def is_of_agents(kind: str) -> bool:
    """Whether agents tell of events of this kind."""
    return kind in _AGENT_KINDS


def from_agent(host: str, message: Mapping[str, Any]) -> Event:
    """Return the event that a message of the agent on ``host`` is.

    Raises:
        ValueError: the message is none of an agent's events, or a field is missing, of the wrong type or out of range.
    """
    if message["kind"] not in _AGENT_KINDS:
        raise ValueError(f"unknown event {message['kind']!r}")
    event = from_record({**message, "host": host})
    assert event is not None
    return event


def from_record(record: Mapping[str, Any]) -> Event | None:
    """Return the event in a record of the journal, None when the record is something else.

    Raises:
        ValueError: a field is missing, of the wrong type or out of range.
    """
    event = _BY_KIND.get(record["kind"])
    if event is None:
        return None
    known = {**event._field_defaults, **record}  # an earlier version has said less
    return typing.cast(
        "Event", _checked(event(*[check(name, known.get(name)) for name, check in _checks(record["kind"])]))
    )


def _checked(event: Any) -> Any:
    """Check what the fields of an event mean together."""
    if isinstance(event, TaskExited) and (event.code is None) == (event.signal is None):
        raise ValueError("a task exits by a code or by a signal")
    return event


_Check = Callable[[str, Any], Any]
"""Takes a field's name and value, and returns the value as the event holds it. Raises ValueError."""


@functools.cache
def _checks(kind: str) -> tuple[tuple[str, _Check], ...]:
    """Return the names of the fields of a kind of event, and what checks each."""
    return tuple((name, _check_of(declared)) for name, declared in _BY_KIND[kind].__annotations__.items())


def _check_of(declared: Any) -> _Check:
    """Return what checks values of a declared type."""
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
        if type(value) not in kinds or not limit.least <= value <= limit.most:  # NaN is not between them
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
