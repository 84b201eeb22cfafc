"""Annotations of a run: no decision depends on them; the journal has them, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from tflaunch.core import policy
from tflaunch.core.events import Attempt, Event, Reason, Seconds
from tflaunch.core.job_state import Cause, Job
from tflaunch.core.states import TaskState
from tflaunch.records import Range


class MemoryGrew(NamedTuple):
    """The memory of the task grows steadily.

    ``rate``: bytes per second, 0 if it no longer does; ``left``: seconds until its host's memory is full.
    """

    host: str
    task: str
    attempt: Attempt
    rate: Annotated[float, Range(-(2.0**63), 2.0**63)]
    left: Seconds


class CheckpointNotCopied(NamedTuple):
    """A checkpoint that a task on ``host`` has written could not be copied."""

    host: str
    reason: Reason


class FaultInjected(NamedTuple):
    """The user sent a signal to tasks."""

    what: str


class HangExplained(NamedTuple):
    """Why tasks hang, found from their stacks before they are stopped."""

    sentence: Reason


class HangNoticed(NamedTuple):
    """Why the tasks of an attempt have been silent for so long; "" once they go on."""

    attempt: Attempt
    sentence: Reason


class StartExplained(NamedTuple):
    """What the tasks do for which the others of an attempt wait, by their stacks."""

    attempt: Attempt
    sentence: Reason


class HostEndExplained(NamedTuple):
    """Why a host was emptied or lost, as what runs it tells after its agent has ended."""

    host: str
    reason: Reason


class FeatureFailed(NamedTuple):
    """A feature failed and is left out of the run; ``on_host``: "" for the supervisor."""

    feature: Reason
    reason: Reason
    on_host: str = ""


Annotation = (
    MemoryGrew
    | HangExplained
    | HangNoticed
    | StartExplained
    | CheckpointNotCopied
    | FaultInjected
    | HostEndExplained
    | FeatureFailed
)
"""What people want to know, and the job does not react to; the journal has it between the events."""


class Growth(NamedTuple):
    """Growth of a task attempt's memory in bytes per second; 0 once it has stopped.

    ``told_at`` and ``full_at``, when its host's memory is full, are in seconds of the supervisor's clock.
    """

    attempt: int
    rate: float
    told_at: float
    full_at: float


class Annotations(NamedTuple):
    """What the annotations of a run tell together.

    ``growth``: task to how its memory grows. ``hang`` is why tasks were found to hang last, and ``explained_at`` when.
    ``host_ends``: host to why it was emptied or lost last, and when that was found. ``start``: what the tasks do that
    do not listen, and in which attempt. ``noticed``: why the tasks are silent, "" if they are not, in which attempt,
    and since when that is known.
    """

    growth: Mapping[str, Growth] = {}
    hang: str = ""
    explained_at: float = 0.0
    host_ends: Mapping[str, tuple[str, float]] = {}
    start: tuple[str, int] = ("", -1)
    noticed: tuple[str, int, float] = ("", -1, 0.0)

    def noted(self, event: Event | Annotation, now: float) -> Annotations:
        """Return the annotations after another one; an event changes none."""
        match event:
            case MemoryGrew(task=task, attempt=attempt, rate=rate, left=left):
                return self._replace(growth={**self.growth, task: Growth(attempt, rate, now, now + left)})
            case HangExplained(sentence=sentence):
                return self._replace(hang=sentence, explained_at=now)
            case HangNoticed(attempt=attempt, sentence=sentence):
                return self._replace(noticed=(sentence, attempt, now))
            case StartExplained(attempt=attempt, sentence=sentence):
                return self._replace(start=(sentence, attempt))
            case HostEndExplained(host=host, reason=reason):
                return self._replace(host_ends={**self.host_ends, host: (reason, now)})
            case _:
                return self

    def growth_of(self, task: TaskState) -> Growth | None:
        """Return how the memory of a living task grows; None if it does not."""
        growth = self.growth.get(task.task)
        is_current = growth is not None and growth.rate and growth.attempt == task.attempt and task.is_alive
        return growth if is_current else None

    def hang_of(self, job: Job) -> str:
        """Return why the tasks hung that ended the attempt; "" if it is not known."""
        is_about_it = job.culprit is not None and policy.has_hung(job.culprit) and self.explained_at >= job.failed_at
        return self.hang if is_about_it else ""

    def start_of(self, job: Job) -> str:
        """Return why the others of this attempt wait; "" if it is not known."""
        sentence, attempt = self.start
        return sentence if attempt == job.attempt else ""

    def noticed_of(self, job: Job) -> str:
        """Return why this attempt is silent; "" if it is not, or is held up from outside."""
        sentence, attempt, _ = self.noticed
        return sentence if sentence and attempt == job.attempt and policy.can_hang(job) else ""

    def explained(self, job: Job) -> Job:
        """Return a job for people: why a host ended that is to blame."""
        culprit = job.culprit
        if culprit is None or culprit.cause not in (Cause.HOST, Cause.DRAIN):
            return job
        reason, found_at = self.host_ends.get(culprit.name, ("", 0.0))
        return job._replace(culprit=culprit._replace(message=reason)) if found_at >= job.failed_at and reason else job


NOTHING = Annotations()
"""What is known without an annotation."""
