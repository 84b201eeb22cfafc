"""Say at the end of a run what `--preload` would have saved, as measured: most users have never heard of it."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from tflaunch.agents.calls import Waiter
from tflaunch.core.job_state import Job
from tflaunch.core.task_state import TaskPhase
from tflaunch.plan.model import PRIVATE
from tflaunch.records import Range, read_record
from tflaunch.runtime.loop import Run
from tflaunch.runtime.watchers import Found, Supervision, Watcher
from tflaunch_worker import program_source

_LEAST = 3.0
"""Seconds of importing about which nothing is said."""

_WORTH = 1.0
"""Seconds that count as a gain."""


Seconds = Annotated[float, Range(0, 1e6)]


class ImportTime(NamedTuple):
    """How long a task has imported TensorFlow, and its CPU time in that."""

    task: str
    seconds: Seconds
    cpu_seconds: Seconds


class ImportTimes(NamedTuple):
    """What a host has measured of the tasks that have imported TensorFlow at the same time."""

    imports: tuple[ImportTime, ...]


class ImportHint(Watcher):
    """Has each host time the imports of its tasks' first start, if there are several."""

    def __init__(self, supervision: Supervision) -> None:
        plan, by_host = supervision.job.plan, dict[str, list[str]]()
        for task in plan.tasks:
            if plan.network != PRIVATE and not program_source.check_command(list(task.argv)):
                by_host.setdefault(task.host, []).append(task.task)
        self._waiting = {host: tasks for host, tasks in by_host.items() if len(tasks) > 1}
        self._sessions = supervision.sessions
        self._found: list[tuple[ImportTime, ...]] = []

    def watch(self, job: Job, now: float) -> None:
        """Ask a host about its tasks once all of them run."""
        for host, names in list(self._waiting.items()):
            phases = {job.tasks[name].phase for name in names}
            if phases == {TaskPhase.RUNNING}:
                del self._waiting[host]
                self._sessions[host].calls.begin("time_imports", Waiter(self._take), tasks=names)

    def _take(self, message: dict[str, Any], body: bytes) -> None:
        self._found.append(read_record(ImportTimes, message).imports)

    def finish(self, run: Run) -> Found:
        """Tell about the host where importing took longest."""
        worst = max(self._found, key=_longest, default=())
        sentence = describe(worst)
        return Found([], [sentence] if sentence else [])


def describe(imports: tuple[ImportTime, ...]) -> str:
    """Return what preloading would have saved on a host, "" for nothing that is worth a sentence.

    A process that imports alone takes the least CPU time of those that did, since an import has one thread.
    """
    seconds = _longest(imports)
    if len(imports) < 2 or seconds <= _LEAST:
        return ""
    alone = min(each.cpu_seconds for each in imports)
    saved = f"{seconds - alone:.0f} s of that"
    if seconds - alone < _WORTH:
        saved = f"{sum(each.cpu_seconds for each in imports) - alone:.0f} s of CPU"
    return (
        f"importing TensorFlow took {seconds:.0f} s in {len(imports)} tasks at once; "
        f"`--preload` would have saved {saved}, and saves all of it when tasks are restarted"
    )


def _longest(imports: tuple[ImportTime, ...]) -> float:
    return max((each.seconds for each in imports), default=0.0)
