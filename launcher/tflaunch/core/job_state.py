"""The states of a job, its hosts and tasks: immutable values, replaced only by `step.step`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from tflaunch.core.events import Count, Reason
from tflaunch.core.restart_budget import Budget, Reached
from tflaunch.core.task_table import StateTable
from tflaunch.plan import moving
from tflaunch.plan.model import Plan, TaskPlan, role_of

STARTED, HAS_RUN, SUCCEEDED, WAITING = "started", "has_run", "succeeded", "waiting"
"""Tags of tasks: an attempt was started; a process was seen; see `TaskState`; will restart alone."""

AT_BREAKPOINT = "at_breakpoint"
"""Tag of tasks with a process that waits for a debugger."""

ALIVE, STALLED, NOT_LISTENING = "alive", "stalled", "not_listening"
"""Tags of tasks, paired with the role: see `TaskState`; alive without output; started, port not open."""

CODE, NAMES, PEERS, CHECKPOINT = "code", "names", "peers", "checkpoint"
"""Tags of hosts that are not down, in addition to their phase: see `HostState.awaits`."""

TIMED = "timed"
"""Tag of hosts with a deadline (a fence or a retry), in addition to their phase."""

SPARE, COLD = "spare", "cold"
"""Tags of spare hosts, which have their other tags paired with the first; COLD: can import modules, and has not yet."""


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


class HostPhase(Enum):
    """Phase of a host's agent."""

    DOWN = "down"
    """No agent: it was never started, or has certainly ended together with its tasks."""
    JOINING = "joining"
    """It is being started."""
    CONNECTED = "connected"
    """Connected: it executes requests."""
    DISCONNECTED = "disconnected"
    """The link to it is lost; until the fence has passed, its tasks may be alive."""
    LEAVING = "leaving"
    """Connected, but stopping its tasks: its lease has expired, or it was asked on its host to stop."""


class HostState(NamedTuple):
    """State of one host. Times are seconds of the supervisor's clock.

    ``reason`` says why it is down or disconnected, ``since`` is when that became known, or when its link was restored;
    ``fence_at`` is when it is certainly dead, or no longer waited for if it is leaving; ``away_since`` is when it was
    given up, None once it has joined again. ``awaits`` is what is still missing: a copy of the user's code (`CODE`),
    the addresses of the others' names (`NAMES`), whether it can reach them (`PEERS`), or the newest checkpoint
    (`CHECKPOINT`). ``is_drained``: it leaves because its host is being drained. ``failures`` counts consecutive losses
    of a host that had joined; ``joined_at`` is when it last joined; ``retry_at`` is when to try it again while the job
    runs without it. ``code`` is the directory with the user's code on the host, "" if none was copied. ``addresses`` is
    as in `events.HostJoined`.

    ``stands_for`` is the host of the compiled plan whose tasks are on this one: itself, unless it has taken the place
    of another; "" for a spare host. ``flaw`` says why it cannot become one again, "" if it can. ``is_warm``: as a spare
    host it was asked to import the modules of the tasks.
    """

    host: str
    phase: HostPhase = HostPhase.JOINING
    reason: str = ""
    awaits: frozenset[str] = frozenset()
    since: float = 0.0
    fence_at: float | None = None
    away_since: float | None = None
    is_drained: bool = False
    failures: int = 0
    joined_at: float = 0.0
    retry_at: float | None = None
    code: str = ""
    addresses: str = ""
    stands_for: str = ""
    flaw: str = ""
    is_warm: bool = False

    @property
    def is_spare(self) -> bool:
        """Whether it has no tasks, and may take the place of a lost host."""
        return not self.stands_for

    @property
    def can_take_over(self) -> bool:
        """Whether it is a spare host that can take the place of a lost one at once."""
        is_whole = self.phase is HostPhase.CONNECTED and CODE not in self.awaits
        return self.is_spare and is_whole and not self.flaw

    @property
    def tags(self) -> tuple[Hashable, ...]:
        """The tags by which the host table counts this host."""
        is_timed = self.fence_at is not None or self.retry_at is not None
        awaited = self.awaits if self.phase is not HostPhase.DOWN else ()
        tags: tuple[Hashable, ...] = (self.phase, *awaited)
        if self.is_spare:
            tags = (SPARE, *((SPARE, tag) for tag in tags))
            if self.can_take_over and not self.is_warm:
                tags = (*tags, COLD)
        return (*tags, TIMED) if is_timed else tags


class TaskPhase(Enum):
    """Phase of a task in its current attempt."""

    IDLE = "idle"
    """Not started yet."""
    STARTING = "starting"
    """The agent was asked to start it."""
    RUNNING = "running"
    """Its program is running."""
    EXITED = "exited"
    """Its process has exited; other processes of its session may be alive."""
    GONE = "gone"
    """None of its processes is left."""


class Breakpoint(NamedTuple):
    """Where a process waits for a debugger; as in `events.BreakpointReached`."""

    file: Reason
    line: Count
    function: Reason


class Stop(NamedTuple):
    """How a task was last stopped.

    ``grace`` is the number of seconds between TERM and KILL, None if stacks were dumped instead of sending TERM;
    ``kill_at`` is the time of that KILL.
    """

    grace: float | None
    kill_at: float


class Exit(NamedTuple):
    """How the process of a task has exited; ``code`` and ``signal`` are None before that, or if that is not known.

    ``failure`` is as in `events.TaskExited`. ``was_stopped``: it had been stopped before; ``outlived_grace``: it was
    killed by that KILL. ``was_cut_short``: its host was leaving and had told it to end, so that exit code 0 does not
    mean that it is done.
    """

    code: int | None = None
    signal: int | None = None
    failure: str = ""
    was_stopped: bool = False
    was_cut_short: bool = False
    outlived_grace: bool = False


class Unended(NamedTuple):
    """A process that may outlive its task: its number, 0 if unknown, and why it has not ended."""

    pid: int
    reason: str


class TaskState(NamedTuple):
    """State of one task. ``since`` and ``resume_at`` are seconds of the supervisor's clock.

    ``stop``: it was asked to stop. ``resume_at``: it restarts alone at this time, or as soon as its host is ready;
    ``budget`` is what such restarts have used. ``preload`` and ``tensorflow`` are as in `events.TaskStarted`;
    ``reached`` is the progress of the attempt, ``metrics`` its last reported metrics. ``breakpoint`` is where it waits
    for a debugger. ``unended``: it was killed and has not ended, or its host has not confirmed that; it may still run
    even if it counts as gone.
    """

    task: str
    phase: TaskPhase = TaskPhase.IDLE
    attempt: int = 0
    since: float = 0.0
    pid: int | None = None
    preload: str = ""
    tensorflow: str = ""
    is_port_open: bool = False
    is_stalled: bool = False
    breakpoint: Breakpoint | None = None
    stop: Stop | None = None
    exit: Exit = Exit()
    unended: Unended | None = None
    reached: Reached = Reached()
    metrics: tuple[tuple[str, float], ...] = ()
    resume_at: float | None = None
    budget: Budget = Budget()

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self.stop is not None

    @property
    def is_alive(self) -> bool:
        """Whether a process of the task may be alive."""
        return self.phase in (TaskPhase.STARTING, TaskPhase.RUNNING, TaskPhase.EXITED)

    @property
    def has_succeeded(self) -> bool:
        """Whether its program exited with code 0 by itself and will not be restarted."""
        has_ended = self.phase in (TaskPhase.EXITED, TaskPhase.GONE)
        return has_ended and self.exit.code == 0 and not self.exit.was_cut_short and self.resume_at is None

    @property
    def tags(self) -> list[Hashable]:
        """The tags by which the task table counts this task."""
        tags: list[Hashable] = []
        if self.phase is not TaskPhase.IDLE:
            role = role_of(self.task)
            tags.append(STARTED)
            if self.is_alive:
                tags.append((ALIVE, role))
                if self.is_stalled:
                    tags.append((STALLED, role))
            if not self.is_port_open:
                tags.append((NOT_LISTENING, role))
        if self.breakpoint is not None and self.phase is TaskPhase.RUNNING:
            tags.append(AT_BREAKPOINT)
        if self.pid is not None:
            tags.append(HAS_RUN)
        if self.has_succeeded:
            tags.append(SUCCEEDED)
        if self.resume_at is not None:
            tags.append(WAITING)
        return tags


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
    """The first cause of an end. ``name`` is a task, a host or a limit; ``message`` says what happened.

    ``time`` is when a task exited, in seconds of the supervisor's clock, and ``host`` is where; ``failure`` is as in
    `events.TaskExited`; ``explanation`` is what else is known about it.
    """

    cause: Cause
    name: str
    attempt: int
    code: int | None
    signal: int | None
    message: str
    time: float = 0.0
    host: str = ""
    failure: str = ""
    explanation: str = ""


class Deadlines(NamedTuple):
    """When something is due in the current attempt, in seconds of the supervisor's clock; None for never.

    ``resume_at``: the next attempt begins, if all hosts are ready. ``save_by``: a preempted gang must have saved.
    ``finish_by``: tasks still running after others have finished are stopped; ``late_at``: they are reported, which
    ``was_late`` says has been done. ``left_breakpoint_at``: when the last task left the breakpoint at which it waited.
    ``confirm_by``: hosts must have confirmed the end of the tasks that were stopped first.
    """

    resume_at: float | None = None
    save_by: float | None = None
    finish_by: float | None = None
    late_at: float | None = None
    was_late: bool = False
    left_breakpoint_at: float | None = None
    confirm_by: float | None = None


class Formation(NamedTuple):
    """How far the cluster is.

    ``is_complete``: every task of the cluster has listened on its port in this attempt; ``was_warned``: that did not
    happen within `policy.WARN_AFTER`. Of all attempts: ``cluster_formed``: one was complete; ``is_past_start``: one has
    run for that long.
    """

    is_complete: bool = False
    was_warned: bool = False
    cluster_formed: bool = False
    is_past_start: bool = False

    @property
    def is_start_over(self) -> bool:
        """Whether start-up is over, so that a failure is not one of start-up."""
        return self.cluster_formed or self.is_past_start


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
    """The newest checkpoint that is in the run's directory, too: as in `events.CheckpointCopied`.

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


class Job(NamedTuple):
    """State of a run. Times are seconds of the supervisor's clock.

    ``original`` is the plan as compiled; ``plan`` is that of the current attempt, with its ports, with tasks on the
    hosts to which they have moved, and without the workers of lost hosts.
    ``success_tasks`` are the tasks that must exit with code 0 for the job to succeed. ``excluded_hosts`` are the hosts
    whose workers the current attempt runs without; ``join_by`` is when hosts that are being joined must have answered.
    ``interrupts`` counts the signals that asked tflaunch to end.
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
        """Return the plan of a task: that of the current attempt, or how it would start in the next.

        Raises:
            KeyError: there is no such task.
        """
        try:
            return self.plan.find(task)
        except KeyError:  # one of a lost host
            compiled = self.original.find(task)
            return moving.task_on(self.original, compiled, self.places.get(compiled.host, compiled.host))

    def process_plans(self) -> list[TaskPlan]:
        """Return the plans of all processes, each as `process` does."""
        return [self.process(process.task) for process in self.original.processes()]

    def host_of(self, task: str) -> str:
        """Return the host on which a task is, or on which it starts next.

        Raises:
            KeyError: there is no such task.
        """
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

    def first_fence_at(self) -> float | None:
        """Return when the first of the disconnected hosts is certainly dead; None if none is disconnected."""
        return self._earliest(host.fence_at for host in self._timed_hosts())

    def first_retry_at(self) -> float | None:
        """Return when to try a host again; None if none is to be retried."""
        return self._earliest(host.retry_at for host in self._timed_hosts())

    def _timed_hosts(self) -> Iterable[HostState]:
        return self.hosts.values() if self.hosts.count(TIMED) else ()

    @staticmethod
    def _earliest(times: Iterable[float | None]) -> float | None:
        return min((time for time in times if time is not None), default=None)

    def alive(self) -> list[TaskState]:
        """Return the tasks that may have a living process."""
        return [task for task in self.tasks.values() if task.is_alive]

    def unended(self) -> list[TaskState]:
        """Return the tasks that count as gone, and may have a living process."""
        return [task for task in self.tasks.values() if task.unended is not None and not task.is_alive]

    def with_host(self, host: str, **changes: Any) -> Job:
        """Return the job with one host changed."""
        return self._replace(hosts=self.hosts.replaced({host: self.hosts[host]._replace(**changes)}))

    def with_deadlines(self, **changes: Any) -> Job:
        """Return the job with some of its `Deadlines` changed."""
        return self._replace(deadlines=self.deadlines._replace(**changes))

    def with_formation(self, **changes: Any) -> Job:
        """Return the job with its `Formation` changed."""
        return self._replace(formation=self.formation._replace(**changes))

    def with_restarts(self, **changes: Any) -> Job:
        """Return the job with its `Restarts` changed."""
        return self._replace(restarts=self.restarts._replace(**changes))

    def with_task(self, task: TaskState, **changes: Any) -> Job:
        """Return the job with one task changed."""
        return self._replace(tasks=self.tasks.replaced({task.task: task._replace(**changes)}))
