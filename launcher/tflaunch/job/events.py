"""Everything that can happen to a job, in the past tense.

What an agent says on the wire is one of these: the kind of a frame is the class name in snake case,
and its fields are the fields here (``host`` is added by the session that read it).
"""

import re
import typing
from typing import Any, NamedTuple


class HostJoined(NamedTuple):
    """The agent on a host is ready."""

    host: str


class HostUnreachable(NamedTuple):
    """No agent could be started on a host."""

    host: str
    reason: str


class LinkLost(NamedTuple):
    """The agent on a host cannot be heard; it and its tasks may live."""

    host: str
    reason: str


class LinkRestored(NamedTuple):
    """The agent on a host is heard again; ``is_leaving``: too late, its lease was over and it ends its tasks."""

    host: str
    is_leaving: bool


class HostLeaving(NamedTuple):
    """The agent on a host ends its tasks and itself, without having been told to.

    ``is_drain``: somebody wants the host to be free, and the tasks were given their grace to save.
    """

    host: str
    reason: str
    is_drain: bool


class HostLost(NamedTuple):
    """The agent on a host is gone, and so are all tasks there."""

    host: str
    reason: str


class FilesPlaced(NamedTuple):
    """The user's code is on the host."""

    host: str


class FilesRefused(NamedTuple):
    """The user's code could not be brought to the host."""

    host: str
    reason: str


class NamesFound(NamedTuple):
    """What a host's resolver knows: name to its addresses, separated by blanks; "" for none."""

    host: str
    found: dict[str, str]


class PortsHeld(NamedTuple):
    """A host holds these ports: task to port."""

    host: str
    ports: dict[str, int]


class PortsRefused(NamedTuple):
    """A host cannot hold some ports: task to the reason."""

    host: str
    refused: dict[str, str]


class PeersTried(NamedTuple):
    """A host has tried to reach the tasks of the others; ``failed``: task to the reason."""

    host: str
    failed: dict[str, str]


class TaskStarted(NamedTuple):
    """The task's program runs. ``at`` is of the supervisor's clock, in seconds.

    ``preload``: the modules that had been imported for it, or "no: " and why not; "" where nobody asked for that.
    """

    host: str
    task: str
    attempt: int
    pid: int
    at: float
    preload: str = ""


class TaskNotStarted(NamedTuple):
    """The task's command could not be executed; ``code`` is 126 or 127."""

    host: str
    task: str
    attempt: int
    code: int
    reason: str


class PortOpened(NamedTuple):
    """The task listens on its port."""

    host: str
    task: str
    attempt: int


class TaskExited(NamedTuple):
    """The task's process has exited: by its own ``code`` or by a ``signal``.

    ``at`` is of the supervisor's clock, in seconds: the session converts it from the host's. ``was_told``:
    the agent had begun to end it. ``evidence`` is what the host knows about the death, for people.
    ``failure`` tells failures of programs from each other (`tflaunch_worker.tasks.failure_signature`). ``step`` and
    ``epoch`` are how far its training came, 0 where that is not known.
    """

    host: str
    task: str
    attempt: int
    code: int | None
    signal: int | None
    at: float
    was_told: bool = False
    evidence: str = ""
    failure: str = ""
    step: int = 0
    epoch: int = 0


class TaskSilent(NamedTuple):
    """The task has written nothing for as long as ``timeouts.stall`` allows."""

    host: str
    task: str
    attempt: int


class TaskSpoke(NamedTuple):
    """A task that was silent has written something."""

    host: str
    task: str
    attempt: int


class TaskGone(NamedTuple):
    """No process of the task is left.

    ``checkpoint`` is the highest number of a checkpoint that the attempt has written, 0 where none is known.
    """

    host: str
    task: str
    attempt: int
    checkpoint: int = 0


class Interrupted(NamedTuple):
    """The user asked for the end: the number of the signal that tflaunch got."""

    signal: int


class StopAsked(NamedTuple):
    """The user asked for the end from another terminal: TERM, and KILL after ``grace`` seconds."""

    grace: float


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


def from_agent(host: str, message: dict[str, Any]) -> Event:
    """Return the event that a message of the agent on ``host`` is.

    Raises:
        ValueError: the message is none of an agent's events, or a field is missing or of the wrong type.
    """
    if message["kind"] not in _AGENT_KINDS:
        raise ValueError(f"unknown event {message['kind']!r}")
    event = from_record({**message, "host": host})
    assert event is not None
    return event


def from_record(record: dict[str, Any]) -> Event | None:
    """Return the event in a record of the journal, None when the record is something else.

    Raises:
        ValueError: a field is missing or of the wrong type.
    """
    event = _BY_KIND.get(record["kind"])
    if event is None:
        return None
    known = {**event._field_defaults, **record}  # an earlier version has said less
    fields = {name: _checked(name, kind, known.get(name)) for name, kind in event.__annotations__.items()}
    return typing.cast("Event", event(**fields))


def _checked(name: str, declared: Any, value: Any) -> Any:
    if typing.get_origin(declared) is dict:
        _, inner = typing.get_args(declared)
        if isinstance(value, dict):
            return {key: _checked(name, inner, item) for key, item in value.items()}
    elif declared is float and isinstance(value, int | float):
        return float(value)
    elif isinstance(value, declared) and (declared is bool or not isinstance(value, bool)):
        return value
    raise ValueError(f"field {name!r} must be {declared}")
