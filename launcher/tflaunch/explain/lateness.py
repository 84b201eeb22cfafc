"""Find the task for which the others wait in most collectives of a synchronous training, and why. Explains only.

Pure: measurements of agents in, a finding out. An agent sees how long a request waits for its task: in a collective,
the task that arrives last keeps a request waiting for as long as it is late. In a balanced training each task is the
last one now and then, so a task is named only if the others wait for it much longer than for any other task, and in far
more collectives, so that it cannot be chance.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tflaunch.core.vitals import TaskVitals

LEAST_SHARE = 0.10
"""Share of the time that others wait for a task, from which it is reported."""

_TIMES = 2.0  # how much longer they wait than for any other task
_SIGMAS = 3.74  # 14 waits of 14, 17 of 18, 24 of 28: by chance once in 10,000 times
_FEWEST_SAMPLES = 20
_SHORT = 0.1  # of the longest waits: shorter ones are those of any collective, and do not count
_MOST_RECORDS = 128  # per task
_WINDOWS = (*range(2, 16), 18, 21, 25, 30, 36, 43, 52, 62, 74, 88, 100)
"""Seconds: a sudden change shows in a short one, a rare wait in a long one."""
_STILL = 25.0  # seconds, after which a task for which the others no longer wait has caught up

_STARVED, _THROTTLED = 0.1, 0.05  # seconds per second
_FAULTS = 20.0  # per second
_SLOW_LINK = 5_000  # microseconds of a round trip
_RETRANSMITTED, _OF_SEGMENTS = 2.0, 0.01  # segments per second, and of all
_MORE = 1.5  # times as much as the others
_MORE_CPU = 1.2


class LateTask(NamedTuple):
    """A task for which the others wait.

    ``share``: for how much of the time; ``reason`` continues "worker:1 is the last in most steps: "; ``is_idle``: it
    used no more CPU than the others, so that its stack shows more.
    """

    task: str
    share: float
    reason: str
    is_idle: bool


class _Record(NamedTuple):
    """What was measured between two messages about a task; rates are per second."""

    seconds: float
    samples: int
    pending: int
    waits: tuple[float, ...]
    cpu: float
    delay: float | None
    faults: float
    throttled: float
    nice: int
    rtt: int
    retransmitted: float
    segments: float


class Lateness:
    """The recent measurements of the tasks that train together, in one attempt."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, TaskVitals]] = {}
        self._delays: dict[str, tuple[float, float]] = {}
        self._records: dict[str, deque[_Record]] = {}

    def add(self, at: float, vitals: TaskVitals) -> None:
        """Add what was measured at ``at``, in seconds of the supervisor's clock."""
        before = self._last.get(vitals.task)
        self._last[vitals.task] = at, vitals
        if before is None or before[1].attempt != vitals.attempt:
            self._records[vitals.task] = deque(maxlen=_MOST_RECORDS)
            self._delays.pop(vitals.task, None)
            self._delay_rate(at, vitals)
            return
        record = _compared(before, (at, vitals), self._delay_rate(at, vitals))
        if record is not None:
            self._records[vitals.task].append(record)

    def _delay_rate(self, at: float, vitals: TaskVitals) -> float | None:
        """Return for how many seconds per second the threads waited for a CPU, since that was last measured."""
        if vitals.load is None or vitals.load.delay is None:
            return None
        then, before = self._delays.get(vitals.task, (at, 0.0))
        self._delays[vitals.task] = at, vitals.load.delay
        return max(vitals.load.delay - before, 0) / (at - then) if at > then else None

    def forget(self, tasks: set[str]) -> None:
        """Forget all tasks but these."""
        for task in self._last.keys() - tasks:
            del self._last[task], self._records[task]
            self._delays.pop(task, None)

    def late(self) -> LateTask | None:
        """Return the task for which the others wait in most collectives; None if there is none for certain."""
        if len(self._records) < 2:
            return None
        sums = {task: _sums(records) for task, records in self._records.items()}
        for index in range(min(map(len, sums.values()))):
            latest = {task: each[index] for task, each in sums.items()}
            task = _most_awaited(latest, LEAST_SHARE)
            if task is None:
                continue
            window = {name: list(self._records[name])[-each.records :] for name, each in latest.items()}
            if _sigmas(window, task) >= _SIGMAS:
                share = latest[task].share
                return LateTask(task, share, *_reason(task, window, share))
        return None

    def is_still_late(self, task: str) -> bool:
        """Return whether the others still wait for a task, by the measurements of about the last half minute."""
        sums = {name: _sums(records, (_STILL,)) for name, records in self._records.items()}
        if task not in sums or len(sums) < 2 or not all(sums.values()):
            return True  # too little is known to tell, or the others have ended
        return _most_awaited({name: each[0] for name, each in sums.items()}, LEAST_SHARE / 2) == task


class _Sum(NamedTuple):
    """How many samples some records contain, in how many of them a request waited, and how many records they are."""

    samples: int
    pending: int
    records: int

    @property
    def share(self) -> float:
        return self.pending / self.samples if self.samples else 0.0


def _sums(records: deque[_Record], windows: Sequence[float] = _WINDOWS) -> list[_Sum]:
    """Return the sum of the latest records that cover each of these seconds, as far as all of them do."""
    found: list[_Sum] = []
    seconds, samples, pending = 0.0, 0, 0
    for count, record in enumerate(reversed(records), 1):
        seconds += record.seconds
        samples += record.samples
        pending += record.pending
        while len(found) < len(windows) and seconds >= windows[len(found)]:
            found.append(_Sum(samples, pending, count))
    return found


def _compared(before: tuple[float, TaskVitals], now: tuple[float, TaskVitals], delay: float | None) -> _Record | None:
    (then, first), (at, last) = before, now
    seconds = at - then
    if seconds <= 0 or not (first.load and first.waits and last.load and last.waits):
        return None
    old, new = first.load, last.load
    resent = (last.waits.retransmitted or 0) - (first.waits.retransmitted or 0)
    return _Record(
        seconds,
        samples=max(last.waits.samples - first.waits.samples, 0),
        pending=max(last.waits.pending - first.waits.pending, 0),
        waits=last.waits.waits,
        cpu=max(new.cpu - old.cpu, 0) / seconds,
        delay=delay,
        faults=max(new.faults - old.faults, 0) / seconds,
        throttled=max(new.throttled - old.throttled, 0) / seconds,
        nice=new.nice,
        rtt=last.waits.rtt or 0,
        retransmitted=max(resent, 0) / seconds,
        segments=max(last.waits.segments - first.waits.segments, 0) / seconds,
    )


# ---- who is late


def _most_awaited(sums: Mapping[str, _Sum], least: float) -> str | None:
    """Return the task for which the others wait this share of the time, and much longer than for any other."""
    order = sorted(sums, key=lambda task: -sums[task].share)
    first, second = sums[order[0]].share, sums[order[1]].share
    is_known = all(each.samples >= _FEWEST_SAMPLES for each in sums.values())
    return order[0] if is_known and first >= least and first >= _TIMES * second else None


def _sigmas(window: Mapping[str, Sequence[_Record]], task: str) -> float:
    """Return by how many standard deviations the waits for a task exceed those for all others.

    In a balanced training, each wait is for any of them by chance. Their lengths do not count, apart from short ones:
    a sample sees a wait at any age.
    """
    waits = {name: [wait for record in records for wait in record.waits] for name, records in window.items()}
    lengths = sorted(wait for each in waits.values() for wait in each)
    least = lengths[int(len(lengths) * 0.9)] * _SHORT if lengths else 0.0
    counts = {name: sum(wait >= least for wait in each) for name, each in waits.items()}
    total = sum(counts.values())
    return (2 * counts[task] - total) / math.sqrt(total) if total else 0.0


# ---- why


def _reason(task: str, window: Mapping[str, Sequence[_Record]], share: float) -> tuple[str, bool]:
    """Return why a task is late for this share of the time, and whether it is idle in that time."""
    from statistics import median  # takes 2 ms to import, for a task that few runs have

    own, others = window[task], [records for name, records in window.items() if name != task]

    def rate(name: str) -> tuple[float, float]:
        """Return the mean of a figure of the task, and the median of those of the others."""
        return _mean(own, name), median(_mean(records, name) for records in others)

    throttled, delay, faults, rtt, resent, cpu = map(
        rate, ("throttled", "delay", "faults", "rtt", "retransmitted", "cpu")
    )
    if throttled[0] >= _THROTTLED and throttled[0] >= _MORE * throttled[1]:
        return f"its cgroup limits its CPU, and stopped it {throttled[0]:.0%} of the time", False
    if faults[0] >= _FAULTS and faults[0] >= _MORE * faults[1]:
        return f"its memory is short ({faults[0]:.0f} major page faults per second)", False
    nice = own[-1].nice
    is_less_nice = nice > max(records[-1].nice for records in others)
    is_starved = delay[0] >= _MORE * delay[1] and delay[0] - delay[1] >= share / 2  # else, it does not explain that
    if delay[0] >= _STARVED and (is_starved or is_less_nice):
        why = f", as its nice value is {nice}" if is_less_nice else ""
        return f"it gets less CPU than the others: its threads wait {delay[0]:.1f} s per second for one{why}", False
    if rtt[0] >= _SLOW_LINK and rtt[0] >= _MORE * rtt[1]:
        return f"its network is slow (round trips of {rtt[0] / 1000:.0f} ms)", False
    is_lossy = resent[0] >= max(_RETRANSMITTED, _OF_SEGMENTS * _mean(own, "segments"))
    if is_lossy and resent[0] >= _MORE * resent[1]:
        return f"its network loses packets ({resent[0]:.0f} sent again per second)", False
    if cpu[0] >= _MORE_CPU * cpu[1] and cpu[0] - cpu[1] >= _STARVED / 2:
        return (
            f"it computes {cpu[0] / max(cpu[1], 1e-9):.1f} times as long as the others: more work, or a slower device",
            False,
        )
    return "it uses no more CPU than the others: it waits for its input, or in its own code", True


def _mean(records: Sequence[_Record], name: str) -> float:
    known = [(value, record.seconds) for record in records if (value := getattr(record, name)) is not None]
    return sum(value * seconds for value, seconds in known) / sum(seconds for _, seconds in known) if known else 0.0
