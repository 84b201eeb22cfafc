"""The status of a run, as `ps`, the display and the page show it. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from tflaunch.core.events import Metrics, Name
from tflaunch.explain.cluster_formation import Forming
from tflaunch.plan.tensorboard import Reach
from tflaunch_worker.readable import duration_words

MISSING = ("down", "joining", "disconnected", "leaving")
"""States of a host that is not there."""


class HostStatus(NamedTuple):
    """The status of a host."""

    host: str
    state: str
    reason: str | None = None
    silence: float | None = None
    """Seconds since its last message, None without a link."""
    since: float | None = None
    """When the link to it was lost, or it was given up, in seconds since the epoch; None if it is connected."""
    until: float | None = None
    """Until when a silent host may have living tasks, or the job waits for a lost one, in seconds since the epoch."""
    lease_left: float | None = None
    """How many seconds its tasks may go on without a supervisor; known only if the supervisor was killed."""
    is_spare: bool | None = None
    """Whether it has no tasks, and may take the place of a lost host; None if the job has no spare hosts."""
    replaces: str | None = None
    """The host of the spec in whose place it is."""


class TaskStatus(NamedTuple):
    """The status of a task. None means what is not known or does not apply."""

    task: str
    role: str
    host: str
    address: str | None
    state: str
    pid: int | None
    attempt: int
    exit_code: int | None = None
    signal: int | None = None
    preload: str | None = None
    since: float | None = None
    listening: bool | None = None
    waiting_since: float | None = None
    cpu_seconds: float | None = None
    rss_bytes: float | None = None
    shared_bytes: float | None = None
    gpu_percent: float | None = None
    gpu_bytes: float | None = None
    step: float | None = None
    steps_per_second: float | None = None
    epoch: float | None = None
    epochs: float | None = None
    steps_per_epoch: float | None = None
    metrics: Metrics | None = None
    progress_age: float | None = None
    """Seconds between the last report of the program and this status."""
    is_progress_from_output: bool | None = None
    """Whether the program reports no progress, and that of Keras was read from its output."""
    cpu_percent: float | None = None
    """Recent CPU usage, in percent of one CPU."""
    refused_connections: float | None = None
    """Number of connections to its port from outside the cluster that were refused, None for none."""
    moved_from: str | None = None
    """The host of the spec on which it would be, if that had not been lost."""
    breakpoint: str | None = None
    """Where it waits at a `breakpoint()` for `tflaunch debug`."""
    memory_growth: float | None = None
    """Bytes per second by which its memory grows steadily, None if it does not."""
    memory_full_at: float | None = None
    """When the memory of its host is full at that rate, in seconds since the epoch."""
    unended: str | None = None
    """Why it may still run although it was killed, None if it does not."""
    last_line: str | None = None
    """The last line of its output; the supervisor leaves it out, as readers have the log."""
    columns: Mapping[Name, float] | None = None
    """What features tell about it, each under its title; the supervisor leaves it out, too."""

    @property
    def total_steps(self) -> float | None:
        """How many steps the whole training has, None if its program does not tell."""
        return self.epochs * self.steps_per_epoch if self.epochs and self.steps_per_epoch else None


class CheckpointStatus(NamedTuple):
    """The newest checkpoint in the run's directory; ``hosts`` have it, too."""

    name: str
    step: int | None
    """The number in its name."""
    since: float
    """When the copy was complete, in seconds since the epoch."""
    hosts: tuple[str, ...]


class HangStatus(NamedTuple):
    """Why no task goes on, and since when that is known, in seconds since the epoch."""

    sentence: str
    since: float


class Status(NamedTuple):
    """The status of a run; times, also in ``forming``, are in seconds since the epoch.

    ``trains`` is ``yes``, ``no`` or ``unknown``, ``because`` says why in a sentence, and ``next_commands`` are what
    helps, as argument lists: they look, or let a run go on, and end nothing. ``phase`` is one of those in
    `explain.assessment`, and goes on since ``since``; a first step is awaited, and a training goes on, since the last
    task of the attempt has started. ``state`` is the job's, or how it has ended.
    """

    run: str
    name: str
    phase: str
    state: str
    attempt: int
    restarts: int
    restart: str | None
    max_restarts: int
    last_failure: str | None
    exit_code: int | None
    culprit: str | None
    reason: str | None
    forming: Forming | None
    supervisor: str
    """``alive`` or ``dead``."""
    started: float
    logs: str
    tensorboard: Reach | None
    hosts: tuple[HostStatus, ...]
    tasks: tuple[TaskStatus, ...]
    outsiders: tuple[str, ...] = ()
    """Addresses outside the cluster whose connections to tasks' ports were refused."""
    checkpoint: CheckpointStatus | None = None
    hang: HangStatus | None = None
    trains: str = "unknown"
    since: float | None = None
    because: str = ""
    next_commands: tuple[tuple[str, ...], ...] = ()


def absence_words(host: HostStatus, now: float) -> str:
    """Return for how long a host is silent or lost; "" if it is there.

    ``now`` is in seconds since the epoch.
    """
    if host.since is None or host.state not in ("disconnected", "down", "joining"):
        return ""
    gone, left = duration_words(now - host.since), None if host.until is None else max(host.until - now, 0.0)
    if host.state == "disconnected":
        end = "" if left is None else f"; its tasks count as dead in {duration_words(left)}"
        return f"{host.host} silent for {gone}{end}"
    if left is None:
        return ""
    reason = f" ({host.reason})" if host.reason else ""
    return f"waiting for {host.host}{reason} for {gone}; gives up in {duration_words(left)}"


def needed_hosts(status: Status) -> list[HostStatus]:
    """Return the hosts that the run has tasks on; none after its end."""
    return [host for host in status.hosts if not host.is_spare and status.phase != "ended"]


def missing_words(status: Status) -> str:
    """Return which hosts are not connected, with the reasons; "" if all are."""
    needed = needed_hosts(status)
    missing = [host for host in needed if host.state in MISSING]
    if not missing:
        return ""
    count = f"{len(needed) - len(missing)} of {len(needed)} hosts connected: " if len(needed) > 1 else ""
    return count + ", ".join(map(host_words, missing))


def host_words(host: HostStatus) -> str:
    """Return ``h1 down (no route to host)``."""
    reason = (host.reason or "").strip()
    return f"{host.host} {host.state}" + (f" ({reason})" if reason else "")
