"""A hint at the end of a run about the time that `--preload` would have saved."""

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
from tflaunch_worker.readable import duration_words

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
    """A host's times of tasks that imported TensorFlow at the same time."""

    imports: tuple[ImportTime, ...]


class ImportHint(Watcher):
    """The watcher of import times on the host with the most tasks that can be forked.

    One host is enough, as each step asks.
    """

    def __init__(self, supervision: Supervision) -> None:
        plan, by_host = supervision.job.plan, dict[str, list[str]]()
        for task in plan.tasks:
            if plan.network != PRIVATE and not program_source.check_command(list(task.argv)):
                by_host.setdefault(task.host, []).append(task.task)
        self._host = max(by_host, key=lambda host: len(by_host[host]), default="")
        self._waiting = by_host.get(self._host, [])
        self._sessions = supervision.sessions
        self._found: tuple[ImportTime, ...] = ()

    def watch(self, job: Job, now: float) -> None:
        """Ask the host once all of these tasks run."""
        if len(self._waiting) > 1 and all(job.tasks[name].phase is TaskPhase.RUNNING for name in self._waiting):
            self._sessions[self._host].calls.begin("time_imports", Waiter(self._take), tasks=self._waiting)
            self._waiting = []

    def _take(self, message: dict[str, Any], body: bytes) -> None:
        self._found = read_record(ImportTimes, message).imports

    def finish(self, run: Run) -> Found:
        """Tell what preloading would have saved."""
        sentence = "" if run.job.exit_code else describe(self._found)  # a failure is more important
        return Found([], [sentence] if sentence else [])


def describe(imports: tuple[ImportTime, ...]) -> str:
    """Say how much preloading would have saved on a host; "" for little.

    A process that imports alone takes the least CPU time of those that did, since an import has one thread.
    """
    seconds = max((each.seconds for each in imports), default=0.0)
    if len(imports) < 2 or seconds <= _LEAST:
        return ""
    alone = min(each.cpu_seconds for each in imports)
    saved = f"{duration_words(seconds - alone)} of that"
    if seconds - alone < _WORTH:
        saved = f"{duration_words(sum(each.cpu_seconds for each in imports) - alone)} of CPU"
    return (
        f"importing TensorFlow took {duration_words(seconds)} in {len(imports)} tasks at once; "
        f"`--preload` would have saved {saved}, and saves all of it when tasks are restarted"
    )
