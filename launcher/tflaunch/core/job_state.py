"""The states of a job and of its tasks: frozen values, changed only by `supervisor.step`."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Any, NamedTuple

from tflaunch.core.persistent_map import Table
from tflaunch.core.restart_budget import Budget, Reached
from tflaunch.core.task_table import Ledger
from tflaunch.plan.model import Plan, role_of

STARTED, HAS_RUN, SUCCEEDED, WAITING = "started", "has_run", "succeeded", "waiting"
"""Marks of tasks: an attempt was begun; a process was seen; see `TaskState`; it is to start again alone."""

ALIVE, SILENT, UNOPENED = "alive", "silent", "unopened"
"""Marks of tasks that stand beside their role: see `TaskState`; alive and silent; begun, and its port is not open."""

CODE, NAMES, PEERS = "code", "names", "peers"
"""Marks of hosts that are not away, beside their phase: what is awaited of them (see `HostState`)."""

TIMED = "timed"
"""A mark of hosts, beside their phase: something becomes of it at a known time."""


class Phase(Enum):
    """Where a job stands."""

    JOINING = "joining"
    """Agents are being reached; nothing runs."""
    PREPARING = "preparing"
    """Every host gets the user's code, looks up the others' names, and holds the ports of its tasks."""
    RUNNING = "running"
    """The tasks of the current attempt are starting or running."""
    SAVING = "saving"
    """A task was preempted: its peers may be saving with it, and are given time to end by themselves."""
    DRAINING = "draining"
    """The job has succeeded; those that end by themselves are given time to."""
    STOPPING = "stopping"
    """Living tasks are being ended, before the next attempt or for good."""
    BACKING_OFF = "backing_off"
    """Everything is dead; the next attempt waits for its time."""
    ENDED = "ended"
    """Nothing lives any more and the exit code is decided."""


class HostPhase(Enum):
    """What is known of a host's agent."""

    AWAY = "away"
    """There is none: it was never started, or has certainly ended with all its tasks."""
    JOINING = "joining"
    """It is being started."""
    JOINED = "joined"
    """It obeys."""
    UNHEARD = "unheard"
    """The link to it is lost; until the fence its tasks may live."""
    LEAVING = "leaving"
    """It is heard, but ends its tasks: its lease was over, or somebody there wants it to end."""


class HostState(NamedTuple):
    """One host. Times are seconds of the supervisor's clock.

    ``reason`` says why it is away or unheard, ``since`` is when that became known, and ``fence_at`` when it
    is certainly dead. ``awaits``: the user's code has yet to be brought to it (`CODE`), it has yet to say what the
    others' names mean to it (`NAMES`), or whether it reaches them (`PEERS`). ``is_drained``: it leaves because
    somebody wants it to be free. ``failures`` counts how often in a row it was lost or not reached,
    ``joined_at`` is when it last joined; ``retry_at`` is when it is tried again while the job runs without it.
    ``code`` is the directory with the user's code there, "" where none was brought.
    """

    host: str
    phase: HostPhase = HostPhase.JOINING
    reason: str = ""
    awaits: frozenset[str] = frozenset()
    since: float = 0.0
    fence_at: float | None = None
    is_drained: bool = False
    failures: int = 0
    joined_at: float = 0.0
    retry_at: float | None = None
    code: str = ""

    @property
    def marks(self) -> tuple[Hashable, ...]:
        """What hosts are counted by."""
        is_timed = self.fence_at is not None or self.retry_at is not None
        awaited = self.awaits if self.phase is not HostPhase.AWAY else ()
        return (self.phase, *awaited, TIMED) if is_timed else (self.phase, *awaited)

    def fenced(self) -> float | None:
        """Return when it is certainly dead."""
        return self.fence_at

    def retried(self) -> float | None:
        """Return when it is tried again."""
        return self.retry_at


class TaskPhase(Enum):
    """Where a task stands in its current attempt."""

    IDLE = "idle"
    """Not started yet."""
    STARTING = "starting"
    """Its host was asked to start it."""
    RUNNING = "running"
    """Its program runs."""
    EXITED = "exited"
    """Its process has exited; others of its session may live."""
    GONE = "gone"
    """No process of it is left."""


class TaskState(NamedTuple):
    """One task. ``since`` and ``resume_at`` are seconds of the supervisor's clock.

    ``tensorflow`` is as in `events.TaskStarted`.
    ``resume_at``: it is to start again alone, then or as soon as its host can. ``budget``: what such starts
    have cost. ``preload`` is as in `events.TaskStarted`, ``failure`` as in `events.TaskExited`; ``reached`` is how
    far the attempt came, ``metrics`` what it reported last. ``grace`` is how many seconds it was given between TERM
    and KILL when it was last told to end, None if it should not have ended by TERM; ``was_stopped``: it exited
    after that.
    """

    task: str
    phase: TaskPhase = TaskPhase.IDLE
    attempt: int = 0
    pid: int | None = None
    code: int | None = None
    signal: int | None = None
    is_port_open: bool = False
    is_stopping: bool = False
    was_stopped: bool = False
    grace: float | None = None
    is_silent: bool = False
    preload: str = ""
    tensorflow: str = ""
    since: float = 0.0
    resume_at: float | None = None
    budget: Budget = Budget()
    failure: str = ""
    reached: Reached = Reached()
    metrics: tuple[tuple[str, float], ...] = ()

    @property
    def is_alive(self) -> bool:
        """Whether a process of the task may live."""
        return self.phase in (TaskPhase.STARTING, TaskPhase.RUNNING, TaskPhase.EXITED)

    @property
    def has_succeeded(self) -> bool:
        """Whether its program ended with exit code 0, and is not to start again."""
        return self.phase in (TaskPhase.EXITED, TaskPhase.GONE) and self.code == 0 and self.resume_at is None

    @property
    def marks(self) -> list[Hashable]:
        """What tasks are counted by."""
        marks: list[Hashable] = []
        if self.phase is not TaskPhase.IDLE:
            role = role_of(self.task)
            marks.append(STARTED)
            if self.is_alive:
                marks.append((ALIVE, role))
                if self.is_silent:
                    marks.append((SILENT, role))
            if not self.is_port_open:
                marks.append((UNOPENED, role))
        if self.pid is not None:
            marks.append(HAS_RUN)
        if self.has_succeeded:
            marks.append(SUCCEEDED)
        if self.resume_at is not None:
            marks.append(WAITING)
        return marks


class Cause(Enum):
    """Why a job failed or was ended: what kind of thing the culprit is."""

    TASK = "task"
    NOT_STARTED = "not_started"
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
    """The first cause. ``name`` is a task, a host or a limit; ``message`` says what it did.

    ``time`` is when a task exited, in seconds of the supervisor's clock, and ``host`` where; ``failure`` is as in
    `events.TaskExited`.
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


class Job(NamedTuple):
    """A whole run. Times are seconds of the supervisor's clock.

    ``original`` is the plan as it was made; ``plan`` is that of the current attempt: with its ports, and
    without the workers of hosts that are lost. ``deciders``: the tasks whose clean exits end the job well.
    ``budget``: what restarts of the gang have cost; ``refusal`` says why there is no further one; ``wanted``
    counts those that were wanted: a host was back, or the user asked for one. ``last_failure`` is the culprit of the
    latest attempt that was followed by another. ``late_at`` is when to name the tasks that still run although others
    have finished, ``was_late``: they were named.
    ``save_by``: until when a preempted gang may save. ``are_peers_asked``: hosts were asked whether they reach the
    others; ``unreached``: what they did not reach. ``left_out``: the hosts without whose workers the current attempt
    is made. ``is_complete``: in this
    attempt every task of the cluster has listened on its port; ``has_formed``: in this attempt or an earlier one.
    ``was_warned``: the cluster of this attempt has not formed within `policy.WARN_AFTER`; ``is_past_start``: an
    attempt has run for that long, so its failure was not one of start-up.
    """

    run: str
    original: Plan
    plan: Plan
    phase: Phase
    tasks: Ledger[TaskState]
    deciders: tuple[str, ...]
    started_at: float
    attempt: int = 0
    attempt_started_at: float = 0.0
    hosts: Ledger[HostState] = Ledger({})
    join_by: float = 0.0
    ports: Table[int] = Table()
    are_peers_asked: bool = False
    unreached: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    is_complete: bool = False
    has_formed: bool = False
    was_warned: bool = False
    is_past_start: bool = False
    culprit: Culprit | None = None
    failed_at: float = 0.0
    exit_code: int | None = None
    budget: Budget = Budget()
    refusal: str = ""
    wanted: int = 0
    last_failure: Culprit | None = None
    late_at: float | None = None
    was_late: bool = False
    resume_at: float | None = None
    save_by: float | None = None
    finish_by: float | None = None

    @property
    def has_started(self) -> bool:
        """Whether any task was ever started."""
        return self.tasks.count(STARTED) > 0

    def hosts_in(self, *phases: HostPhase) -> list[str]:
        """Return the hosts that are in one of these phases."""
        if not self.hosts.count(*phases):
            return []
        return [host.host for host in self.hosts.values() if host.phase in phases]

    def alive(self) -> list[TaskState]:
        """Return the tasks that may have a living process."""
        return [task for task in self.tasks.values() if task.is_alive]

    def with_host(self, host: str, **changes: Any) -> Job:
        """Return the job with one host changed."""
        return self._replace(hosts=self.hosts.replaced({host: self.hosts[host]._replace(**changes)}))

    def with_task(self, task: TaskState, **changes: Any) -> Job:
        """Return the job with one task changed."""
        return self._replace(tasks=self.tasks.replaced({task.task: task._replace(**changes)}))
