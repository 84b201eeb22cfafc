"""Watch the memory of tasks, and report when it will be full."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from tflaunch.agents.calls import Waiter
from tflaunch.agents.session import Session
from tflaunch.core.annotations import Annotations, MemoryGrew
from tflaunch.core.events import Attempt, Count, Seconds
from tflaunch.core.job_state import Job, Phase
from tflaunch.core.task_state import TaskPhase, TaskState
from tflaunch.features.memory.memory_growth import MemoryGrowth, seconds_left
from tflaunch.records import read_record
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch_worker import fields

_BETWEEN_GROWTHS = 600.0  # seconds after which a prediction is renewed
_SOONER = 0.5  # of the time that was left, after which it is renewed earlier


class TaskVitals(NamedTuple):
    """A measurement of a task: ``rss`` is the size of its memory, in bytes.

    ``history`` are earlier sizes: their age in seconds, and bytes; oldest first.
    """

    attempt: Attempt
    rss: Count
    history: tuple[tuple[Seconds, Count], ...] = ()


class HostVitals(NamedTuple):
    """A measurement of a host's tasks; ``room``: bytes left to them, None if unknown."""

    room: Count | None
    tasks: Mapping[str, TaskVitals]


class VitalsMonitor(Watcher):
    """Judges the measurements of all hosts."""

    def __init__(self, supervision: Supervision) -> None:
        self._job = supervision.job
        self._known = Annotations()
        self._mailbox = supervision.mailbox
        self._memory: dict[str, tuple[int, MemoryGrowth]] = {}
        for host, session in supervision.sessions.items():
            watch_memory(session, partial(self._take, host))

    def watch(self, job: Job, now: float) -> None:
        """Take the job's state after a step."""
        self._job = job

    def take_annotations(self, known: Annotations) -> None:
        """Take what is known after another annotation."""
        self._known = known

    def _take(self, host: str, vitals: HostVitals, at: float) -> None:
        """Judge what a host measured at ``at``, in seconds of the supervisor's clock."""
        if self._job.phase is not Phase.RUNNING or vitals.room is None:
            return
        measured = [(one, self._job.tasks[task]) for task, one in vitals.tasks.items() if task in self._job.tasks]
        running = [(one, state) for one, state in measured if _is_running(one, state)]
        self._judge_memory(host, vitals.room, running, at)

    def _judge_memory(self, host: str, room: int, running: list[tuple[TaskVitals, TaskState]], at: float) -> None:
        rates: dict[str, float] = {}
        for task, state in running:
            attempt, growth = self._memory.get(state.task, (-1, MemoryGrowth()))
            if attempt != state.attempt or task.history:
                growth = MemoryGrowth([(at - age, size) for age, size in task.history])
                self._memory[state.task] = state.attempt, growth
            growth.add(at, task.rss)
            rate = growth.rate(room)
            if rate is not None:
                rates[state.task] = rate
        left = seconds_left(room, list(rates.values()))
        for _, state in running:
            event = self._growth_event(host, state, rates.get(state.task), left)
            if event is not None:
                self._mailbox.put(event)

    def _growth_event(self, host: str, state: TaskState, rate: float | None, left: float | None) -> MemoryGrew | None:
        """Return the news about the memory of a task; None for none."""
        now, known = self._mailbox.now(), self._known.growth_of(state)
        if rate is None or left is None:
            return None if known is None else MemoryGrew(host, state.task, state.attempt, 0.0, 0.0)
        if known is not None:
            is_old = now - known.told_at >= _BETWEEN_GROWTHS
            is_sooner = now + left < known.told_at + _SOONER * (known.full_at - known.told_at)
            if not (is_old or is_sooner):
                return None
        return MemoryGrew(host, state.task, state.attempt, rate, left)


def _is_running(task: TaskVitals, state: TaskState) -> bool:
    is_running = state.phase is TaskPhase.RUNNING and not state.is_stopping and state.breakpoint is None
    return state.attempt == task.attempt and is_running


def watch_memory(session: Session, take: Callable[[HostVitals, float], None]) -> None:
    """Call ``take`` with the memory that the agent measures at intervals, and when."""

    def told(message: dict[str, Any], body: bytes) -> None:
        known = read_record(HostVitals, message)
        moment = session.ours(fields.number(message, "time"))
        tasks = {task: one for task, one in known.tasks.items() if session.has_started(task, one.attempt)}
        take(known._replace(tasks=tasks), moment)

    session.calls.keep("watch_memory", Waiter(told=told))
