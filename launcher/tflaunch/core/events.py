"""Events: everything that can happen to a job, named in the past tense.

`event_records` reads them from messages of agents and from records of the journal, which have the fields declared here.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from tflaunch.records import Line, Range, check_of
from tflaunch_worker import schema
from tflaunch_worker.agent.progress import LONGEST_NAME, MOST_METRICS

LONGEST_TIME = 1e12
"""Seconds: 30,000 years."""

Attempt = Annotated[int, Range(0, 2**31)]
Count = Annotated[int, Range(0, 2**63 - 1)]
Pid = Annotated[int, Range(1, 2**31)]
Port = Annotated[int, Range(1, 65535)]
ExitCode = Annotated[int, Range(0, 255)]
SignalNumber = Annotated[int, Range(1, 64)]
Moment = Annotated[float, Range(-LONGEST_TIME, LONGEST_TIME)]
Seconds = Annotated[float, Range(0, LONGEST_TIME)]
Figure = Annotated[int | float, Range(-1e300, 1e300)]  # beyond any real one; rejects integers too large for a float
Name = Annotated[str, Line(1000)]
Reason = Annotated[str, Line(1000)]
Addresses = Annotated[str, Line(4000)]
OwnAddresses = Annotated[str, Line(20_000)]
IpAddress = Annotated[str, Line(50)]
"""Types of fields, checked for every event that comes from an agent or a journal."""


def read_metrics(name: str, value: Any) -> dict[str, float]:
    """Return the first metrics of a program that have a value, or raise ValueError."""
    kind = Mapping[Annotated[str, Line(LONGEST_NAME)], Figure | None]
    figures = {} if value is None else check_of(kind)(name, value)
    metrics = [(metric, figure) for metric, figure in figures.items() if figure is not None]
    return dict(metrics[:MOST_METRICS])


Metrics = Annotated[Mapping[str, float], read_metrics]
"""What a program reports by name, wherever it comes from: an agent, the journal, the history."""


class HostJoined(NamedTuple):
    """The agent on a host is ready.

    ``addresses`` are those of its network interfaces, separated by spaces; "" if unknown. ``no_way_out``: why tasks do
    not reach the world from their private network there, "" if they do or have none. ``gpus``: the number of its GPUs,
    None if unknown.
    """

    host: str
    addresses: OwnAddresses = ""
    no_way_out: Reason = ""
    gpus: Count | None = None


class HostDelayed(NamedTuple):
    """A host cannot be reached yet, or not again, and is waited for.

    ``is_held``: what makes it is held back by another's queue, for as long as that may take.
    """

    host: str
    reason: Reason
    is_held: bool = False


class HostUnreachable(NamedTuple):
    """No agent could be started on a host."""

    host: str
    reason: Reason


class LinkLost(NamedTuple):
    """The link to the agent on a host is lost; it and its tasks may still be alive."""

    host: str
    reason: Reason


class LinkRestored(NamedTuple):
    """The link to an agent is restored; ``is_leaving``: its lease has expired."""

    host: str
    is_leaving: bool


class HostLeaving(NamedTuple):
    """An agent stops its tasks and exits without a request from the supervisor.

    ``is_drain``: the host is being drained, and the tasks got their grace to save.
    """

    host: str
    reason: Reason
    is_drain: bool


class HostLost(NamedTuple):
    """The agent on a host is gone, and so are all its tasks.

    ``is_faulty``: it was given up for what would happen again after a restart: it broke the protocol repeatedly.
    """

    host: str
    reason: Reason
    is_faulty: bool = False


NEEDS = ("code", "checkpoint", "setup", "network")
"""What is brought to a host or made there before an attempt."""


def read_need(name: str, value: Any) -> str:
    """Return a need of hosts (`NEEDS`); raise ValueError for anything else."""
    if value not in NEEDS:
        raise schema.refuse(name, "what a host needs", value)
    return str(value)


Need = Annotated[str, read_need]


class HostPrepared(NamedTuple):
    """A host has what the next attempt needs, such as the code in directory ``name``.

    ``name`` and ``step`` are those of the checkpoint with which the attempt starts; "" and 0 for none.
    """

    host: str
    what: Need
    name: Reason = ""
    step: Count = 0


class HostRefused(NamedTuple):
    """A host lacks what the next attempt needs; ``lines``: the last output about it."""

    host: str
    what: Need
    reason: Reason
    lines: tuple[Reason, ...] = ()


class NamesResolved(NamedTuple):
    """A host has resolved names, each to addresses separated by spaces, or to ""."""

    host: str
    found: dict[Name, Addresses]


class PortsHeld(NamedTuple):
    """A host holds ports, by task; ``addresses``: those of `HostJoined`, as of now."""

    host: str
    ports: dict[Name, Port]
    addresses: OwnAddresses = ""


class PortsRefused(NamedTuple):
    """A host could not hold some ports: task to the reason."""

    host: str
    refused: dict[Name, Reason]


class PeersProbed(NamedTuple):
    """A host has tried to reach the others' tasks; ``failed``: task to the reason."""

    host: str
    failed: dict[Name, Reason]


class PeerSeen(NamedTuple):
    """Another host of the run has used an address that the fence does not admit yet."""

    host: str
    source: IpAddress


class OutsiderRefused(NamedTuple):
    """A task's fence refused a connection, the first from this address on this host."""

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
    """

    host: str
    task: str
    attempt: Attempt
    pid: Pid
    at: Moment
    preload: Reason = ""
    tensorflow: Reason = ""


class TaskNotStarted(NamedTuple):
    """The task's command could not be executed; ``code`` is 126 or 127."""

    host: str
    task: str
    attempt: Attempt
    code: ExitCode
    reason: Reason


class PortOpened(NamedTuple):
    """The task listens on its ``port``, which it may have chosen itself; 0 if unknown."""

    host: str
    task: str
    attempt: Attempt
    port: Annotated[int, Range(0, 65535)] = 0


class TaskExited(NamedTuple):
    """The task's process has exited with a ``code`` or was killed by a ``signal``.

    ``at`` is in seconds of the supervisor's clock; the session converts it from the host's. ``was_told``: the agent
    had begun to stop it. ``evidence`` is what the host knows about the cause of death, for users. ``failure``
    distinguishes failures of programs (`tflaunch_worker.agent.last_output`). ``step`` and ``epoch`` are the
    progress of its training, 0 if unknown, and ``metrics`` its last reported metrics. ``went_to_background``: the code
    is 0, but the process had only started the program, which ``evidence`` names. ``suspended``: the state and
    pid of a process that a signal or debugger had stopped before the agent began to end the task; "" for none.
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
    metrics: Metrics = {}  # noqa: RUF012 (never changed)
    went_to_background: bool = False
    suspended: Reason = ""


class BreakpointReached(NamedTuple):
    """A process of the task waits at a `breakpoint()` in this line and function."""

    host: str
    task: str
    attempt: Attempt
    file: Reason
    line: Count
    function: Reason


class BreakpointLeft(NamedTuple):
    """No process waits at a breakpoint any more; ``is_quit``: its user ended the run."""

    host: str
    task: str
    attempt: Attempt
    is_quit: bool = False


class TaskGone(NamedTuple):
    """None of the task's processes is left.

    ``checkpoint`` is the highest number of a checkpoint that the attempt has written, 0 if unknown.
    """

    host: str
    task: str
    attempt: Attempt
    checkpoint: Count = 0


class TaskLingers(NamedTuple):
    """A process of the task outlives KILL; ``reason``: what the kernel says about it."""

    host: str
    task: str
    attempt: Attempt
    pid: Pid
    reason: Reason


class Interrupted(NamedTuple):
    """tflaunch received a signal to stop; ``why``: who sent it, if that is known.

    ``is_announced``: it is being found out who has sent it; the same event follows with the answer, and stops the job.
    """

    signal: SignalNumber
    why: Reason = ""
    is_announced: bool = False


class StopRequested(NamedTuple):
    """Another terminal asked to stop the job: TERM, and KILL after ``grace`` seconds."""

    grace: Seconds


class RestartRequested(NamedTuple):
    """The user asked to restart a task, or the whole gang for ""."""

    task: str


class JobHung(NamedTuple):
    """No task goes on; ``message``: for how long, ``place``: where the awaited one is."""

    attempt: Attempt
    message: Reason
    place: Reason = ""


class CheckpointCopied(NamedTuple):
    """A checkpoint from ``host`` is in the run's directory, too, for later attempts.

    ``step`` is the number in its name, 0 for none; ``hosts``: those that have it, separated by spaces.
    """

    host: str
    name: Reason
    step: Count
    hosts: OwnAddresses


class Superseded(NamedTuple):
    """A host has accepted another supervisor of this run; this one must not act.

    It is not in the journal.
    """

    host: str


class TimePassed(NamedTuple):
    """The deadline of `time_limits.next_deadline` has passed."""


HostEvent = HostJoined | HostDelayed | HostUnreachable | LinkLost | LinkRestored | HostLeaving | HostLost
"""What happens to a host, or to the link to it."""

HostAnswer = HostPrepared | HostRefused | NamesResolved | PortsHeld | PortsRefused | PeersProbed
"""What agents answer to the orders before an attempt."""

PreparationEvent = HostAnswer | CheckpointCopied
"""What was done for the next attempt, or could not be done."""

FenceEvent = PeerSeen | OutsiderRefused | PortUnfenced
"""Who reaches the ports of tasks."""

TaskEvent = (
    TaskStarted | TaskNotStarted | PortOpened | BreakpointReached | BreakpointLeft | TaskExited | TaskLingers | TaskGone
)
"""What happens to an attempt of a task."""

UserRequest = Interrupted | StopRequested | RestartRequested
"""What users want."""

Event = HostEvent | PreparationEvent | FenceEvent | TaskEvent | UserRequest | JobHung | TimePassed


AgentEvent = HostLeaving | HostAnswer | FenceEvent | TaskEvent
"""What agents report."""
