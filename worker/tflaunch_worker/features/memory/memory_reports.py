"""Reports of memory used by tasks and left, every ten seconds.

The agent only measures; the supervisor decides what it means.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from tflaunch_worker import procfs, spawn
from tflaunch_worker.agent.calls import Call
from tflaunch_worker.agent.services import AgentParts, Service
from tflaunch_worker.agent.task import Task
from tflaunch_worker.features.memory.oom import OomWatch, in_words
from tflaunch_worker.inspect.usage import owners_of
from tflaunch_worker.readable import duration_words

_PERIOD = 10.0  # seconds between two measurements
_FEWEST_BYTES = 64 * 2**20  # growth that is reported after a kill for lack of memory
_SHORTEST_GROWTH = 30.0  # seconds


class MemoryService(Service):
    """Measures the tasks of this host, from their start to their end."""

    CALLS: ClassVar = {"watch_memory": {}}

    def __init__(self, agent: AgentParts) -> None:
        super().__init__(agent)
        self._oom = OomWatch()
        self._tasks: dict[str, _Watched] = {}
        self._is_scheduled = False
        self._call: Call | None = None

    def watch_memory(self, call: Call, message: dict[str, Any]) -> None:
        """Send the tasks' memory at intervals."""
        self._call = call

    def begin_task(self, task: Task, command: spawn.Command) -> None:
        """Measure a task that is about to start."""
        self._tasks[task.name] = _Watched(task)
        if not self._is_scheduled:
            self._schedule()

    def end_task(self, name: str) -> None:
        """Measure a task no longer: it is gone."""
        self._tasks.pop(name, None)

    def explain_kill(self, pid: int) -> str:
        """Return that memory was full, if it was, and which task has grown most."""
        evidence = self._oom.evidence(pid)
        return "; ".join(filter(None, (evidence, self.growth()))) if evidence else ""

    def growth(self) -> str:
        """Return a clause about the task whose memory has grown most, "" if none has."""
        if not self._tasks:
            return ""
        task, known = max(self._tasks.items(), key=lambda item: item[1].last[0] - item[1].least[0])
        (first, began), (last, at) = known.least, known.last
        if last - first < _FEWEST_BYTES or at - began < _SHORTEST_GROWTH:
            return ""
        return f"{task} had grown from {in_words(first)} to {in_words(last)} in {duration_words(at - began)}"

    def _schedule(self) -> None:
        self._is_scheduled = True
        self.agent.loop.call_at(self.agent.loop.now() + _PERIOD, self._measure)

    def _measure(self) -> None:
        """Report a regular measurement, unless others still wait to be sent."""
        self._is_scheduled = False
        if not self._tasks:
            return
        leaders = {each.task.pid: task for task, each in self._tasks.items() if each.task.pid}
        processes = procfs.processes()
        rss: Counter[str] = Counter()
        for pid, task in owners_of(processes, leaders).items():
            rss[task] += processes[pid].rss_bytes
        now = self.agent.loop.now()
        known = {task: each.measure(now, rss[task]) for task, each in self._tasks.items()}
        if self._call is not None and self._call.is_open and not self.agent.link.has_unsent:
            self._call.tell(time=now, room=self._oom.room(), tasks=known)
        self._schedule()


class _Watched:
    """A task that is measured: its smallest and last size, and when it had them."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.least = float("inf"), 0.0
        self.last = 0.0, 0.0

    def measure(self, now: float, rss: int) -> dict[str, Any]:
        """Note the memory, and return it with the attempt."""
        if rss:
            self.last = rss, now
            self.least = min(self.least, self.last)
        return {"attempt": self.task.attempt, "rss": rss}
