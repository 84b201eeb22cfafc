"""The state of a job: an immutable value, replaced only by `step.step`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from enum import Enum
from typing import NamedTuple, TypeVar

from tflaunch.core.restart_budget import Budget
from tflaunch.core.states import SPARE, STARTED, TIMED, HostPhase, HostState, TaskState
from tflaunch.plan import attempts
from tflaunch.plan.model import Plan, TaskPlan


class Phase(Enum):
    """Phase of a job."""

    JOINING = "joining"
    """Agents are being started or reached; no task runs."""
    PREPARING = "preparing"
    """Hosts receive the user's code, look up each other's names and hold the ports of their tasks."""
    RUNNING = "running"
    """The tasks of the current attempt are starting or running."""
    SAVING = "saving"
    """A task was preempted: its peers may be saving with it and get time to exit by themselves."""
    DRAINING = "draining"
    """The job has succeeded; tasks that exit by themselves get time to do so."""
    STOPPING = "stopping"
    """Living tasks are being stopped, before the next attempt or for good."""
    BACKING_OFF = "backing_off"
    """The gang has ended; the next attempt waits for its backoff."""
    WAITING_FOR_HOSTS = "waiting_for_hosts"
    """The next attempt needs hosts that are lost; they are tried again and again (`lost_hosts`)."""
    ENDED = "ended"
    """No task is alive and the exit code is final."""


class Cause(Enum):
    """Kind of culprit: why a job failed or was stopped."""

    TASK = "task"
    NOT_STARTED = "not_started"
    BACKGROUND = "background"
    SUSPENDED = "suspended"
    UNREACHABLE = "unreachable"
    NAMES = "names"
    FILES = "files"
    PORTS = "ports"
    PEERS = "peers"
    HOST = "host"
    DRAIN = "drain"
    GROWTH = "growth"
    REQUEST = "request"
    TIME = "time"
    SIGNAL = "signal"


class Culprit(NamedTuple):
    """The first cause of an end; ``name`` is a task, a host or a limit.

    ``message`` says what happened. ``time`` is when a task exited, in seconds of the supervisor's clock, and ``host``
    is where; ``failure`` is as in `events.TaskExited`; ``explanation`` is what else is known about it. ``forked_from``:
    the modules of the process from which the task was forked, if that may be the cause.
    """

    cause: Cause
    name: str
    attempt: int
    message: str = ""
    time: float = 0.0
    host: str = ""
    code: int | None = None
    signal: int | None = None
    failure: str = ""
    explanation: str = ""
    forked_from: str = ""


class Deadlines(NamedTuple):
    """Deadlines of the attempt in seconds of the supervisor's clock; None for never.

    ``resume_at``: the next attempt begins, if all hosts are ready. ``save_by``: a preempted gang must have saved.
    ``finish_by``: tasks still running after others have finished are stopped; ``late_at``: they are reported, which
    ``was_late`` says has been done. ``left_breakpoint_at``: when the last task left the breakpoint at which it waited.
    ``confirm_by``: hosts must have confirmed the end of the tasks that were stopped first. ``settles_at``: a success
    counts, unless it becomes known before that the tasks were ended from outside.
    """

    resume_at: float | None = None
    save_by: float | None = None
    finish_by: float | None = None
    late_at: float | None = None
    was_late: bool = False
    left_breakpoint_at: float | None = None
    confirm_by: float | None = None
    settles_at: float = 0.0


class Formation(NamedTuple):
    """How far the cluster is.

    ``is_complete``: every task of the cluster has listened on its port in this attempt; ``was_warned``: that did not
    happen within `policy.WARN_AFTER`; ``started_at``: when the last task of this attempt started, which waits for
    what it preloads, in seconds of the supervisor's clock. Of all attempts: ``cluster_formed``: one was complete;
    ``is_past_start``: one has run for that long.
    """

    is_complete: bool = False
    was_warned: bool = False
    started_at: float = 0.0
    cluster_formed: bool = False
    is_past_start: bool = False


class Preflight(NamedTuple):
    """The check before the first start.

    ``are_peers_probed``: hosts were asked whether they can reach each other; ``unreached`` is what they could
    not reach.
    """

    are_peers_probed: bool = False
    unreached: tuple[str, ...] = ()


class Restarts(NamedTuple):
    """The restarts of the gang.

    ``budget`` is what they have used; ``requested`` counts those that no failure caused: a host returned, or the user
    asked. ``last_failure`` is the culprit of the latest attempt that was followed by another; ``no_retry_reason`` says
    why no other attempt follows.
    """

    budget: Budget = Budget()
    requested: int = 0
    last_failure: Culprit | None = None
    no_retry_reason: str = ""


class CopiedCheckpoint(NamedTuple):
    """The newest checkpoint in the run's directory, as in `events.CheckpointCopied`.

    ``writer``: the host that wrote it; ``at``: when that was known, in seconds of the supervisor's clock; ``hosts``
    have it.
    """

    writer: str
    name: str
    step: int
    at: float
    hosts: tuple[str, ...]


class PortFence(NamedTuple):
    """What hosts have reported about the fence around the tasks' ports.

    ``seen`` are addresses of the cluster that its hosts do not know as their own; ``refused`` are those from which
    connections were refused; ``flaw`` says why connections from everywhere can reach a task, "" if none does.
    """

    seen: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    flaw: str = ""


State = TypeVar("State", bound=HostState | TaskState)


class StateTable(dict[str, State]):
    """Map of states by name that is never changed, with counts per tag.

    A job of a thousand tasks has thousands of events, and each asks whether any task is alive, waiting or late.
    Counts answer that without scanning all tasks.
    """

    def __init__(self, states: Mapping[str, State]) -> None:
        """Create a map of these states."""
        super().__init__(states)
        self._counts = Counter(tag for state in states.values() for tag in state.tags)

    def count(self, *tags: Hashable) -> int:
        """Return how often states have these tags, several tags counted several times."""
        return sum(self._counts[tag] for tag in tags)

    def replaced(self, states: Mapping[str, State]) -> StateTable[State]:
        """Return the table with these states replaced."""
        table: StateTable[State] = StateTable({})
        table._counts = self._counts.copy()
        table._counts.subtract(tag for name in states if name in self for tag in self[name].tags)
        table._counts.update(tag for state in states.values() for tag in state.tags)
        table.update(self)
        table.update(states)
        return table


class Job(NamedTuple):
    """State of a run. Times are seconds of the supervisor's clock.

    ``original`` is the plan as compiled; ``plan`` is that of the current attempt, with its ports, with tasks on the
    hosts to which they have moved, and without the workers of lost hosts.
    ``success_tasks`` are the tasks that must exit with code 0 for the job to succeed. ``excluded_hosts`` are the hosts
    whose workers the current attempt runs without; ``join_by`` is when hosts that are being joined must have answered.
    ``interrupts`` counts the signals that asked tflaunch to end, and ``is_told_to_end``: one more has come, and it is
    being found out who has sent it. ``unforked``: why no task is forked any more, "" for nothing.
    """

    run: str
    original: Plan
    plan: Plan
    phase: Phase
    tasks: StateTable[TaskState]
    success_tasks: tuple[str, ...]
    started_at: float
    attempt: int = 0
    attempt_started_at: float = 0.0
    hosts: StateTable[HostState] = StateTable({})
    join_by: float = 0.0
    ports: Mapping[str, int] = {}
    preflight: Preflight = Preflight()
    port_fence: PortFence = PortFence()
    excluded_hosts: tuple[str, ...] = ()
    formation: Formation = Formation()
    culprit: Culprit | None = None
    failed_at: float = 0.0
    exit_code: int | None = None
    restarts: Restarts = Restarts()
    deadlines: Deadlines = Deadlines()
    checkpoint: CopiedCheckpoint | None = None
    interrupts: int = 0
    is_told_to_end: bool = False
    unforked: str = ""

    @property
    def has_started(self) -> bool:
        """Whether any task was ever started."""
        return self.tasks.count(STARTED) > 0

    @property
    def places(self) -> dict[str, str]:
        """Maps each host of the compiled plan that was replaced to the host in its place."""
        if not self.original.spares:
            return {}
        return {host.stands_for: name for name, host in self.hosts.items() if host.stands_for not in ("", name)}

    def process(self, task: str) -> TaskPlan:
        """Return the plan of a task, now or else in the next attempt, or raise KeyError."""
        try:
            return self.plan.find(task)
        except KeyError:  # one of a lost host
            compiled = self.original.find(task)
            return attempts.task_on(self.original, compiled, self.places.get(compiled.host, compiled.host))

    def process_plans(self) -> list[TaskPlan]:
        """Return the plans of all processes, each as `process` does."""
        return [self.process(process.task) for process in self.original.processes()]

    def host_of(self, task: str) -> str:
        """Return the host of a task, now or at its next start; raises as `process`."""
        return self.process(task).host

    def hosts_in(self, *phases: HostPhase) -> list[str]:
        """Return the hosts with tasks that are in one of these phases."""
        if not self.hosts.count(*phases):
            return []
        return [host.host for host in self.hosts.values() if host.phase in phases and not host.is_spare]

    def away(self) -> list[HostState]:
        """Return the hosts with tasks that were lost and have not joined again."""
        if not self.hosts.count(HostPhase.DOWN, HostPhase.JOINING):
            return []
        return [host for host in self.hosts.values() if host.away_since is not None and not host.is_spare]

    def spares_in(self, *phases: HostPhase) -> list[str]:
        """Return the spare hosts that are in one of these phases."""
        if not self.hosts.count(*((SPARE, phase) for phase in phases)):
            return []
        return [host.host for host in self.hosts.values() if host.phase in phases and host.is_spare]

    def timed_hosts(self) -> Iterable[HostState]:
        """Return all hosts if one has a deadline, else none."""
        return self.hosts.values() if self.hosts.count(TIMED) else ()

    def alive(self) -> list[TaskState]:
        """Return the tasks that may have a living process."""
        return [task for task in self.tasks.values() if task.is_alive]

    def unended(self) -> list[TaskState]:
        """Return the tasks that count as gone, and may have a living process."""
        return [task for task in self.tasks.values() if task.unended is not None and not task.is_alive]

    def with_host(self, host: HostState) -> Job:
        """Return the job with one host replaced."""
        return self._replace(hosts=self.hosts.replaced({host.host: host}))

    def with_task(self, task: TaskState) -> Job:
        """Return the job with one task replaced."""
        return self._replace(tasks=self.tasks.replaced({task.task: task}))
