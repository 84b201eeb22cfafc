"""Watch the memory of tasks, and forecast when that of a host will be full.

Memory grows while a program starts, and a cache or a shuffle buffer fills. Growth counts as steady if it goes on at the
same rate for a time that is long compared with what is predicted from it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from tflaunch.agents.calls import Waiter
from tflaunch.agents.session import Session
from tflaunch.core.annotations import MemoryGrew
from tflaunch.core.events import Attempt, Count
from tflaunch.core.job_state import Phase
from tflaunch.core.states import TaskPhase, TaskState
from tflaunch.records import read_record
from tflaunch.runtime.watchers import Supervision, Watcher
from tflaunch_worker import fields

_BETWEEN_GROWTHS = 600.0  # seconds after which a prediction is renewed
_SOONER = 0.5  # of the time that was left, after which it is renewed earlier

LONGEST = 43_200.0
"""Seconds: what is further in the future is not predicted."""

_MOST, _COARSE = 64, 40  # points that are kept, and those of them whose distance grows
_WARM_UP = 60.0  # seconds after the first measurement that do not count
_SHORTEST, _PART = 30.0, 20.0  # seconds of growth, and the part of the prediction that they must be
_FEWEST = 12  # points
_PARTS = 4
_STEADY = 0.8  # of the mean growth, that each part must reach
_LEAST_GROWTH, _LEAST_SHARE = 32 * 2**20, 0.03  # bytes, and of the memory in use


class TaskVitals(NamedTuple):
    """A measurement of a task: ``rss`` is the size of its memory, in bytes."""

    attempt: Attempt
    rss: Count


class HostVitals(NamedTuple):
    """A measurement of a host's tasks; ``room``: bytes left to them, None if unknown."""

    room: Count | None
    tasks: Mapping[str, TaskVitals]


class VitalsMonitor(Watcher):
    """Judges the measurements of all hosts."""

    def __init__(self, supervision: Supervision) -> None:
        super().__init__(supervision)
        self._memory: dict[str, tuple[int, MemoryGrowth]] = {}
        for host, session in supervision.sessions.items():
            watch_memory(session, partial(self._take, host))

    def _take(self, host: str, vitals: HostVitals, at: float) -> None:
        """Judge what a host measured at ``at``, in seconds of the supervisor's clock."""
        if self.job.phase is not Phase.RUNNING or vitals.room is None:
            return
        measured = [(one, self.job.tasks[task]) for task, one in vitals.tasks.items() if task in self.job.tasks]
        running = [(one, state) for one, state in measured if _is_running(one, state)]
        rates: dict[str, float] = {}
        for task, state in running:
            attempt, growth = self._memory.get(state.task, (-1, MemoryGrowth()))
            if attempt != state.attempt:
                growth = MemoryGrowth()
                self._memory[state.task] = state.attempt, growth
            growth.add(at, task.rss)
            rate = growth.rate(vitals.room)
            if rate is not None:
                rates[state.task] = rate
        left = seconds_left(vitals.room, list(rates.values()))
        for _, state in running:
            event = self._growth_event(host, state, rates.get(state.task), left)
            if event is not None:
                self.supervision.mailbox.put(event)

    def _growth_event(self, host: str, state: TaskState, rate: float | None, left: float | None) -> MemoryGrew | None:
        now, known = self.supervision.mailbox.now(), self.known.growth_of(state)
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


class MemoryGrowth:
    """The memory of one attempt of a task: recent sizes all, earlier ones sparsely."""

    def __init__(self) -> None:
        self._coarse: list[tuple[float, float]] = []
        self._fine: list[tuple[float, float]] = []
        self._between = 0.0

    def add(self, at: float, size: float) -> None:
        """Add a measurement: seconds of the supervisor's clock, and bytes."""
        if self._fine and at <= self._fine[-1][0]:
            return
        self._fine.append((at, size))
        if len(self._fine) <= _MOST - _COARSE:
            return
        oldest = self._fine.pop(0)
        if not self._coarse or oldest[0] - self._coarse[-1][0] >= self._between:
            self._coarse.append(oldest)
        if len(self._coarse) > _COARSE:
            del self._coarse[1::2]
            self._between = 1.5 * (self._coarse[-1][0] - self._coarse[0][0]) / len(self._coarse) / 2

    def points(self) -> list[tuple[float, float]]:
        """Return the points (seconds, bytes) that are kept, oldest first."""
        return [*self._coarse, *self._fine]

    def rate(self, room: float) -> float | None:
        """Return the steady growth in bytes/s; None if unsteady or if ``room`` lasts long."""
        points = self.points()
        points = [point for point in points if point[0] >= points[0][0] + _WARM_UP]
        for first in (0, len(points) // 2, len(points) * 3 // 4):  # a leak may begin at any time
            rate = _steady_rate(points[first:], room)
            if rate is not None:
                return rate
        return None


def seconds_left(room: float, rates: Sequence[float]) -> float | None:
    """Return the seconds until memory is full at these rates; None beyond `LONGEST`."""
    left = room / sum(rates) if rates else float("inf")
    return left if left <= LONGEST else None


def _steady_rate(points: Sequence[tuple[float, float]], room: float) -> float | None:
    if len(points) < _FEWEST:
        return None
    span = points[-1][0] - points[0][0]
    rate = _slope(points)
    if rate <= 0 or room / rate > LONGEST or span < max(_SHORTEST, room / rate / _PART):
        return None
    if rate * span < max(_LEAST_GROWTH, _LEAST_SHARE * points[-1][1]):
        return None
    edges = [_size_at(points, points[0][0] + span * number / _PARTS) for number in range(_PARTS + 1)]
    growths = [later - earlier for earlier, later in pairwise(edges)]
    return rate if min(growths) >= _STEADY * rate * span / _PARTS else None


def _size_at(points: Sequence[tuple[float, float]], at: float) -> float:
    """Interpolate the size at a moment, between medians of three points around it."""
    place = next((number for number, point in enumerate(points) if point[0] >= at), len(points) - 1)
    (then, before), (later, after) = _smooth(points, max(place - 1, 0)), _smooth(points, place)
    return after if later <= then else before + (after - before) * (at - then) / (later - then)


def _smooth(points: Sequence[tuple[float, float]], place: int) -> tuple[float, float]:
    near = sorted(size for _, size in points[max(place - 1, 0) : place + 2])
    return points[place][0], near[1] if len(near) == 3 else points[place][1]


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the median slope between points half a series apart, robust to outliers."""
    half = len(points) // 2
    return median(
        (later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in zip(points, points[half:], strict=False)
    )
