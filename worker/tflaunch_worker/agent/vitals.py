"""Report every second or less often what tasks get from their host: memory and, in collectives, CPU and waits.

The agent only measures; the supervisor decides what it means. The period follows from the cost.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import time

from tflaunch_worker import linux
from tflaunch_worker.agent.oom import in_words
from tflaunch_worker.inspect import task_load
from tflaunch_worker.inspect.usage import owners_of
from tflaunch_worker.memory_series import MemorySeries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

    from tflaunch_worker.agent.collective_watch import CollectiveWatch
    from tflaunch_worker.event_loop import Loop

    Tell = Callable[[Dict[str, Any]], bool]

_OF_COLLECTIVES, _OTHERWISE = 1.0, 10.0  # seconds between two measurements
_SHARE = 0.001  # of a CPU, which measurements may cost
_SHARE_OF_FULL = 0.0015  # which full ones may cost: they visit all threads
_BETWEEN_FULL = 2.0  # seconds between two of these
_LONGEST = 60.0  # seconds
_BETWEEN_SCANS = 60.0  # seconds for which the processes of a task are known; less at first
_FEWEST_BYTES = 64 * 2**20  # growth that is reported after a kill for lack of memory
_SHORTEST_GROWTH = 30.0  # seconds


class VitalsReporter:
    """Measures the tasks of this host, from their start to their end."""

    def __init__(
        self, loop: Loop, room: Callable[[], int | None], watch: Callable[[], CollectiveWatch], tell: Tell
    ) -> None:
        """Measure nothing yet.

        Args:
            loop: the agent's.
            room: returns how many bytes the tasks can still use.
            watch: returns the watch that finds out which task waits for which.
            tell: sends ``room`` and what is known by task; returns whether it could be sent.
        """
        self._loop = loop
        self._room = room
        self._watch = watch
        self._tell = tell
        self._tasks: dict[str, _Watched] = {}
        self._collectives: CollectiveWatch | None = None
        self._is_scheduled = False
        self._cost = 0.0
        self._full_at = 0.0
        self._scan_at = 0.0
        self._is_history_due = False

    def add(self, task: str, attempt: int, pid: Callable[[], int], port: int) -> None:
        """Measure a task; ``port``: its port if it takes part in collectives, else 0."""
        self._tasks[task] = _Watched(attempt, pid, bool(port), self._loop.now())
        self._scan_at = self._loop.now()
        if port:
            if self._collectives is None:
                self._collectives = self._watch()
            self._collectives.add(task, port)
        if not self._is_scheduled:
            self._schedule()

    def remove(self, task: str) -> None:
        """Stop measuring a task, which is gone."""
        self._tasks.pop(task, None)
        if self._collectives is not None:
            self._collectives.remove(task)

    def resend_history(self) -> None:
        """Report the next time how the memory has grown so far: there is a new supervisor, or a new link."""
        self._is_history_due = True

    def growth(self) -> str:
        """Return a clause about the task whose memory has grown most, "" if none has."""
        grown = [(watched.grown(), task) for task, watched in self._tasks.items()]
        (growth, since, first, last), task = max(grown, default=((0.0, 0.0, 0.0, 0.0), ""))
        if growth < _FEWEST_BYTES or since < _SHORTEST_GROWTH:
            return ""
        return f"{task} had grown from {in_words(first)} to {in_words(last)} in {_lasted(since)}"

    def _schedule(self) -> None:
        period = _OF_COLLECTIVES if any(each.is_collective for each in self._tasks.values()) else _OTHERWISE
        period = min(max(period, self._cost / _SHARE), _LONGEST)
        self._is_scheduled = True
        self._loop.call_at(self._loop.now() + period, self._measure)

    def _measure(self) -> None:
        self._is_scheduled = False
        if not self._tasks:
            return
        now = self._loop.now()
        if now >= self._scan_at or any(each.pid() not in [0, *each.pids] for each in self._tasks.values()):
            self._scan(now)
        began = time.thread_time()
        is_full = now >= self._full_at or self._is_history_due  # the history is judged together with the room
        known = {task: self._measured(task, watched, now, is_full) for task, watched in self._tasks.items()}
        if self._tell({"room": self._room() if is_full else None, "tasks": known}):
            self._is_history_due = False
        cost = time.thread_time() - began
        if is_full:
            self._full_at = now + min(max(_BETWEEN_FULL, cost / _SHARE_OF_FULL), _LONGEST)
        else:
            self._cost += (cost - self._cost) / 4
        self._schedule()

    def _scan(self, now: float) -> None:
        """Find the processes of each task: a program may be started by a shell, and start others."""
        leaders = {pid: task for task, watched in self._tasks.items() if (pid := watched.pid())}
        for watched in self._tasks.values():
            watched.pids = [watched.pid()] if watched.pid() else []
        for pid, task in sorted(owners_of(linux.processes(), leaders).items()):
            if pid not in self._tasks[task].pids:
                self._tasks[task].pids.append(pid)
        youngest = min(now - watched.since for watched in self._tasks.values())
        self._scan_at = now + min(youngest, _BETWEEN_SCANS)

    def _measured(self, task: str, watched: _Watched, now: float, is_full: bool) -> dict[str, Any]:
        known: dict[str, Any] = {"attempt": watched.attempt}
        if not watched.is_collective:
            known["rss"] = task_load.rss_of(watched.pids)
        else:
            load = task_load.load_of(watched.pids, with_threads=is_full)
            known["rss"] = load.rss_bytes
            known["load"] = [
                round(load.cpu, 4),
                None if load.delay is None else round(load.delay, 4),
                load.faults,
                round(load.throttled, 4),
                load.nice,
            ]
            known.update(self._waits(task))
        if known["rss"]:
            watched.memory.add(now, known["rss"])
        if self._is_history_due:
            known["history"] = [[round(now - at, 1), value] for at, value in watched.memory.points()]
        return known

    def _waits(self, task: str) -> dict[str, Any]:
        assert self._collectives is not None
        waits = self._collectives.known(task)
        if waits is None:
            return {}
        links = self._collectives.links(task)
        known: dict[str, Any] = {
            "samples": waits.samples,
            "pending": waits.pending,
            "waits": waits.take_waits(),
            "queues": self._collectives.take_queues(task),
        }
        if links is not None:
            known["rtt"], known["retransmitted"], known["segments"] = links
        return known


class _Watched:
    """A task that is measured."""

    def __init__(self, attempt: int, pid: Callable[[], int], is_collective: bool, since: float) -> None:
        self.attempt = attempt
        self.pid = pid
        self.pids: list[int] = []
        self.is_collective = is_collective
        self.since = since
        self.memory = MemorySeries()

    def grown(self) -> tuple[float, float, float, float]:
        """Return by how many bytes, and in how many seconds, the memory has grown, and its first and last size.

        It counts from the smallest size since the first measurement.
        """
        points = self.memory.points()
        if not points:
            return 0.0, 0.0, 0.0, 0.0
        began, first = min(points, key=lambda point: point[1])
        at, last = points[-1]
        return last - first, at - began, first, last


def _lasted(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
