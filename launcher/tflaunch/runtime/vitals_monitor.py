"""Watch what tasks get from their hosts: report a task for which the others wait, and memory that will be full."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tflaunch.agents.session import Session
from tflaunch.core import policy
from tflaunch.core.events import MemoryGrew, TaskCaughtUp, TaskFellBehind
from tflaunch.core.job_state import Job, Phase, TaskPhase, TaskState
from tflaunch.core.vitals import HostVitals, TaskVitals
from tflaunch.explain.lateness import Lateness, LateTask
from tflaunch.explain.memory_growth import MemoryGrowth, seconds_left
from tflaunch.explain.slow_links import LinkQueues, SlowLink
from tflaunch.mailbox import Mailbox
from tflaunch.printable import printable

FindPlace = Callable[[str, Callable[[str], None]], None]
"""Calls its second argument with where a task waits and what it does there, "" if unknown; soon."""

_BETWEEN_JUDGEMENTS = 0.8  # seconds: with many hosts, a measurement arrives every few milliseconds
_MOST_LOOKS = 5  # at the stacks of a task that is late, and idle
_BETWEEN_GROWTHS = 600.0  # seconds after which a prediction is renewed
_SOONER = 0.5  # of the time that was left, after which it is renewed earlier


class VitalsMonitor:
    """Judges the measurements of all hosts. Implements `Watcher`."""

    def __init__(self, job: Job, sessions: Mapping[str, Session], mailbox: Mailbox, find_place: FindPlace) -> None:
        self._job = job
        self._mailbox = mailbox
        self._find_place = find_place
        self._attempt = job.attempt
        self._lateness = Lateness()
        self._links = LinkQueues()
        self._hosts_by_address = _by_address(job)
        self._asked: str | None = None
        self._judge_at = 0.0
        self._memory: dict[str, tuple[int, MemoryGrowth]] = {}
        for host, session in sessions.items():
            session.measurements.tell_vitals(partial(self._take, host))

    def watch(self, job: Job, now: float) -> None:
        """Take the job's state after a step."""
        if job.hosts is not self._job.hosts:
            self._hosts_by_address = _by_address(job)
        self._job = job
        if job.attempt != self._attempt:
            self._attempt, self._lateness, self._links, self._asked = job.attempt, Lateness(), LinkQueues(), None

    def _take(self, host: str, vitals: HostVitals, at: float) -> None:
        """Judge what a host measured at ``at``, in seconds of the supervisor's clock."""
        if self._job.phase is not Phase.RUNNING:
            return
        measured = [(task, self._job.tasks[task.task]) for task in vitals.tasks if task.task in self._job.tasks]
        running = [(task, state) for task, state in measured if _is_running(task, state)]
        if vitals.room is not None:
            self._judge_memory(host, vitals.room, running, at)
        if any(task.waits is not None for task, _ in running):
            for task, _ in running:
                self._lateness.add(at, task)
            queues = [queue for task, _ in running if task.waits is not None for queue in task.waits.queues]
            self._links.add(at, host, queues, self._hosts_by_address)
            if self._mailbox.now() >= self._judge_at:
                self._judge_lateness()
                self._judge_at = self._mailbox.now() + _BETWEEN_JUDGEMENTS

    # ---- who is late

    def _judge_lateness(self) -> None:
        job = self._job
        training = {task.task for task in policy.gang_tasks(job) if _runs(job.tasks[task.task])}
        self._lateness.forget(training)
        known = next((task for task in job.tasks.values() if task.late is not None and _runs(task)), None)
        hosts = {job.host_of(task) for task in training}
        slow = self._links.slow(hosts)
        if known is not None:
            is_slow = self._links.is_still_slow(job.host_of(known.task), hosts)
            if not is_slow and (slow is not None or not self._lateness.is_still_late(known.task)):
                self._lateness = Lateness()
                self._mailbox.put(TaskCaughtUp(job.host_of(known.task), known.task, known.attempt))
            return
        if self._asked is not None or len(training) < len(policy.gang_tasks(job)):
            return
        found = self._lateness.late() if slow is None else self._late_by_link(slow)
        if found is None:
            return
        if not found.is_idle:
            self._tell(found, found.reason)
            return
        self._asked = found.task
        self._find_place(found.task, partial(self._tell_idle, found, _MOST_LOOKS))

    def _late_by_link(self, slow: SlowLink) -> LateTask:
        """Return the finding about the first task of a host whose network is slow."""
        first = next(task.task for task in policy.gang_tasks(self._job) if self._job.host_of(task.task) == slow.host)
        end = f"to {slow.receiver}" if slow.sender == slow.host else f"from {slow.sender}"
        reason = (
            f"its network is slow: data {end} waits to be sent {slow.share:.0%} of the time, "
            f"and between the other hosts {slow.others:.0%}"
        )
        return LateTask(first, slow.share, reason, is_idle=False)

    def _tell_idle(self, found: LateTask, looks: int, place: str) -> None:
        """Report an idle task; if its stacks did not show what it waits for, report that later if they do then."""
        state = self._job.tasks[found.task]
        if not _runs(state) or (state.late is None and looks < _MOST_LOOKS):
            self._asked = None
            return
        if place or looks == _MOST_LOOKS:
            self._tell(found, place or found.reason)
        if place or looks == 1:
            self._asked = None
        else:
            self._find_place(found.task, partial(self._tell_idle, found, looks - 1))

    def _tell(self, found: LateTask, reason: str) -> None:
        state = self._job.tasks[found.task]
        host = self._job.host_of(found.task)
        self._mailbox.put(TaskFellBehind(host, found.task, state.attempt, found.share, printable(reason)))

    # ---- memory

    def _judge_memory(self, host: str, room: int, running: list[tuple[TaskVitals, TaskState]], at: float) -> None:
        rates: dict[str, float] = {}
        for task, state in running:
            attempt, growth = self._memory.get(task.task, (-1, MemoryGrowth()))
            if attempt != state.attempt or task.history:
                growth = MemoryGrowth([(at - age, size) for age, size in task.history])
                self._memory[task.task] = state.attempt, growth
            growth.add(at, task.rss)
            rate = growth.rate(room)
            if rate is not None:
                rates[task.task] = rate
        left = seconds_left(room, list(rates.values()))
        for _, state in running:
            event = self._growth_event(host, state, rates.get(state.task), left)
            if event is not None:
                self._mailbox.put(event)

    def _growth_event(self, host: str, state: TaskState, rate: float | None, left: float | None) -> MemoryGrew | None:
        """Return what is new about the memory of a task, None for nothing."""
        now, known = self._mailbox.now(), state.growth
        if rate is None or left is None:
            return None if known is None else MemoryGrew(host, state.task, state.attempt, 0.0, 0.0)
        if known is not None:
            is_old = now - known.told_at >= _BETWEEN_GROWTHS
            is_sooner = now + left < known.told_at + _SOONER * (known.full_at - known.told_at)
            if not (is_old or is_sooner):
                return None
        return MemoryGrew(host, state.task, state.attempt, rate, left)


def _by_address(job: Job) -> dict[str, str]:
    return {address: host for host, state in job.hosts.items() for address in state.addresses.split()}


def _runs(state: TaskState) -> bool:
    return state.phase is TaskPhase.RUNNING and not state.is_stopping and state.breakpoint is None


def _is_running(task: TaskVitals, state: TaskState) -> bool:
    return state.attempt == task.attempt and _runs(state)
