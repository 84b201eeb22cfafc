"""Immutable states and measurements of hosts and tasks; `step.step` replaces them."""

from collections.abc import Hashable, Mapping
from enum import Enum
from typing import NamedTuple

from tflaunch.core.events import NEEDS, Attempt, Count, Figure, Metrics, Reason
from tflaunch.core.restart_budget import Budget, Reached
from tflaunch.plan.model import role_of
from tflaunch.plan.task_starter import REFUSED
from tflaunch.records import check_of

CODE, CHECKPOINT, SETUP, NETWORK = NEEDS
NAMES, PEERS = "names", "peers"
"""Tags of hosts that are not down, in addition to their phase: see `HostState.awaits`."""

TOLD_BY_AGENTS = (CODE, NETWORK)
"""Those that agents answer with an event."""

FIRST_NEEDS = frozenset((CODE, SETUP))
"""What each new agent lacks at first, and has for all attempts."""

TIMED = "timed"
"""Tag of hosts with a deadline (a fence or a retry), in addition to their phase."""

SPARE, COLD = "spare", "cold"
"""Tags of spare hosts, which have their other tags paired with the first; COLD: can import modules, and has not yet."""

HELD = "held"
"""Tag of hosts that are joining, and held back, so that no limit goes on for them."""


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
    what the spec's ``setup`` makes (`SETUP`), the addresses of the others' names (`NAMES`), whether it can reach them
    (`PEERS`), or the newest checkpoint (`CHECKPOINT`). ``is_drained``: it leaves because its host is being drained.
    ``failures`` counts consecutive losses of a host that had joined; ``joined_at`` is when it last joined; ``retry_at``
    is when to try it again while the job runs without it. ``code`` is the directory with the user's code on the host,
    "" if none was copied. ``addresses`` is as in `events.HostJoined`.

    ``stands_for`` is the host of the compiled plan whose tasks are on this one: itself, unless it has taken the place
    of another; "" for a spare host. ``flaw`` says why it cannot become one again, "" if it can. ``is_warm``: as a spare
    host it was asked to import the modules of the tasks. ``is_held`` is as in `events.HostDelayed`.
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
    is_held: bool = False

    @property
    def is_spare(self) -> bool:
        """Whether it has no tasks, and may take the place of a lost host."""
        return not self.stands_for

    @property
    def can_take_over(self) -> bool:
        """Whether it is a spare host that can take the place of a lost one at once."""
        is_whole = self.phase is HostPhase.CONNECTED and not self.awaits & FIRST_NEEDS
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
        tags = (*tags, HELD) if self.is_held else tags
        return (*tags, TIMED) if is_timed else tags


STARTED, HAS_RUN, SUCCEEDED, WAITING = "started", "has_run", "succeeded", "waiting"
"""Tags of tasks: an attempt was started; a process was seen; see `TaskState`; will restart alone."""

AT_BREAKPOINT = "at_breakpoint"
"""Tag of tasks with a process that waits for a debugger."""

ALIVE, NOT_LISTENING = "alive", "not_listening"
"""Tags of tasks, paired with the role: see `TaskState`; started, port not open."""


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


LIVING = (TaskPhase.STARTING, TaskPhase.RUNNING, TaskPhase.EXITED)
"""Phases in which a process of the task may be alive."""


class Breakpoint(NamedTuple):
    """Where a process waits for a debugger; as in `events.BreakpointReached`."""

    file: Reason
    line: Count
    function: Reason

    def __str__(self) -> str:
        """Return ``train.py, line 40, in step``; without a function at the top of a file."""
        function = "" if self.function == "<module>" else f", in {self.function}"
        return f"{self.file.rpartition('/')[2]}, line {self.line}{function}"


class Stop(NamedTuple):
    """How a task was last stopped.

    ``grace`` is the number of seconds between TERM and KILL, None if stacks were dumped instead of sending TERM;
    ``kill_at`` is the time of that KILL.
    """

    grace: float | None
    kill_at: float


class Exit(NamedTuple):
    """The exit of a task's process; ``code`` and ``signal`` are None until known.

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
    """A process that may outlive its task: its pid, or 0, and why it has not ended."""

    pid: int
    reason: str


class TaskState(NamedTuple):
    """State of a task; times are in seconds of the supervisor's clock.

    ``stop``: it was asked to stop. ``resume_at``: it restarts alone at this time, or as soon as its host is ready;
    ``budget`` is what such restarts have used. ``preload`` and ``tensorflow`` are as in `events.TaskStarted`;
    ``port`` is the one on which it listens, 0 if that is not known; ``reached`` is the progress of the attempt,
    ``metrics`` its last reported metrics. ``breakpoint`` is where it waits
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
    port: int = 0
    breakpoint: Breakpoint | None = None
    stop: Stop | None = None
    exit: Exit = Exit()
    unended: Unended | None = None
    reached: Reached = Reached()
    metrics: tuple[tuple[str, float], ...] = ()
    resume_at: float | None = None
    budget: Budget = Budget()

    @property
    def is_forked(self) -> bool:
        """Whether it was forked from a process that had imported modules."""
        return self.preload != "" and not self.preload.startswith(REFUSED)

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self.stop is not None

    @property
    def is_alive(self) -> bool:
        """Whether a process of the task may be alive."""
        return self.phase in LIVING

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


class Progress(NamedTuple):
    """Progress as reported by the training program; None for what it does not report."""

    step: Figure | None
    epoch: Figure | None
    epochs: Figure | None
    steps_per_epoch: Figure | None
    steps_per_second: Figure | None
    metrics: Metrics
    age: Figure | None
    """Seconds between the program's last report and the measurement."""
    is_from_output: bool = False
    """Whether the program reports nothing, and its output was read instead."""


class Measure(NamedTuple):
    """Resource usage of a living attempt of a task; None for what is not known."""

    attempt: Attempt
    cpu_seconds: Figure | None
    """CPU time used so far. It drops when a process ends that no process of the task waits for."""
    rss_bytes: Figure | None
    gpu_bytes: Figure | None
    gpu_percent: Figure | None
    """Load of the GPUs that it runs on over the last second; 100 means all of them were always busy."""
    progress: Progress | None
    shared_bytes: Figure | None = None
    """The part of ``rss_bytes`` shared with other processes; known for forked tasks (`preload`) only."""
    refused: Figure | None = None
    """Number of connections to its port from outside the cluster that were refused, in all attempts."""


def read_measures(tasks: object) -> dict[str, Measure]:
    """Return the measures in a ``measured`` frame, or raise ValueError."""
    measures: dict[str, Measure] = check_of(Mapping[str, Measure])("tasks", tasks)
    return measures
