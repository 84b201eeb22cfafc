"""The timeline of a run: its tasks' attempts, and what it waits for. Pure."""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from tflaunch.core import events, lost_hosts, policy, restart_rules
from tflaunch.core.annotations import FaultInjected
from tflaunch.core.job_state import Job, Phase
from tflaunch.core.states import HostPhase, TaskState
from tflaunch.errors import EXIT_INTERNAL
from tflaunch.explain import causes
from tflaunch.explain.status import outcome_of
from tflaunch.explain.wording import listed

_MOST = 8
_END = f"then the run ends with exit code {EXIT_INTERNAL}"


class TaskSpan(NamedTuple):
    """An attempt of a task, in epoch seconds; ``ended`` is None while it runs.

    ``state`` is that of the task in `ps`; ``reason`` says why an attempt failed.
    """

    task: str
    host: str
    attempt: int
    started: float
    ended: float | None = None
    state: str = "running"
    reason: str | None = None


class AttemptSpan(NamedTuple):
    """An attempt of the job, from its first task's start to its end for a ``reason``."""

    attempt: int
    started: float
    ended: float | None = None
    culprit: str | None = None
    reason: str | None = None


class Mark(NamedTuple):
    """An occurrence beside the attempts, of ``kind`` "checkpoint", "fault" or "host"."""

    time: float
    kind: str
    text: str


_MOST_MARKS = 500


class Timeline:
    """The attempts of a run, and events beside them, from its supervisor's steps."""

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque(maxlen=_MOST_MARKS)
        self._tasks: list[TaskSpan] = []
        self._attempts: list[AttemptSpan] = []
        self._open: dict[str, int] = {}

    def add(self, before: Job, event: object, job: Job, now: float, epoch: float) -> None:
        """Add a step, as in `client.observer`; ``now + epoch`` is seconds since the epoch."""
        match event:
            case events.TaskStarted(host=host, task=task, attempt=attempt):
                self._begin(job, TaskSpan(task, host, attempt, round(event.at + epoch, 3)))
            case events.TaskExited(task=task):
                self._end(job.tasks[task], round(event.at + epoch, 3), _reason(job.tasks[task], event.evidence))
            case events.TaskGone(task=task):
                self._end(job.tasks[task], round(now + epoch, 3), None)
            case events.TaskNotStarted(task=task, host=host, attempt=attempt):
                at = round(now + epoch, 3)
                self._begin(job, TaskSpan(task, host, attempt, at))
                self._end(job.tasks[task], at, event.reason)
            case events.HostLost() | events.TimePassed():
                for task in [task for task in self._open if not job.tasks[task].is_alive]:
                    self._end(job.tasks[task], round(now + epoch, 3), None)
            case _:
                pass
        if mark := _mark(event, round(now + epoch, 3)):
            self._marks.append(mark)
        is_over = job.phase in (Phase.BACKING_OFF, Phase.ENDED) and job.phase is not before.phase
        if is_over or job.attempt != before.attempt:  # the next attempt may begin at once
            self._end_attempt(before, job, round(now + epoch, 3))

    def as_json(self) -> dict[str, Any]:
        """Return ``attempts`` and ``tasks`` in order of start, and the last ``marks``."""
        return {
            "marks": [mark._asdict() for mark in self._marks],
            "attempts": [span._asdict() for span in self._attempts],
            "tasks": [span._asdict() for span in self._tasks],
        }

    def _begin(self, job: Job, span: TaskSpan) -> None:
        self._open[span.task] = len(self._tasks)
        self._tasks.append(span)
        if not self._attempts or self._attempts[-1].ended is not None:
            self._attempts.append(AttemptSpan(job.attempt, span.started))

    def _end(self, task: TaskState, at: float, reason: str | None) -> None:
        index = self._open.pop(task.task, None)
        if index is not None:
            self._tasks[index] = self._tasks[index]._replace(ended=at, state=outcome_of(task), reason=reason)

    def _end_attempt(self, before: Job, job: Job, at: float) -> None:
        if not self._attempts or self._attempts[-1].ended is not None:
            return
        culprit = job.culprit or (None if job.exit_code == 0 else before.culprit)
        self._attempts[-1] = self._attempts[-1]._replace(
            ended=at,
            culprit=None if culprit is None else culprit.name,
            reason=None if culprit is None else causes.describe(culprit, job.plan),
        )


def _mark(event: object, at: float) -> Mark | None:
    match event:
        case events.CheckpointCopied(host=host, name=name):
            return Mark(at, "checkpoint", f"checkpoint {name} of {host} was copied")
        case FaultInjected(what=what):
            return Mark(at, "fault", what)
        case events.HostLost(host=host, reason=reason) | events.HostLeaving(host=host, reason=reason):
            return Mark(at, "host", f"{host}: {reason}")
        case events.LinkLost(host=host, reason=reason):
            return Mark(at, "host", f"the link to {host} is lost: {reason}")
        case events.LinkRestored(host=host):
            return Mark(at, "host", f"the link to {host} is back")
        case _:
            return None


def _reason(task: TaskState, evidence: str) -> str | None:
    """Return why a task failed, None if it did not."""
    if outcome_of(task) != "failed":
        return None
    raised = f" ({task.exit.failure})" if restart_rules.is_raised(task.exit.failure) else ""
    return causes.describe_exit(task) + raised + (f": {evidence}" if evidence else "")


class Wait(NamedTuple):
    """A wait of a run until a time: ``then`` follows, ``again`` is the next try.

    ``what`` begins a sentence.
    """

    what: str
    until: float
    then: str
    again: float | None = None


def waits_of(job: Job, epoch: float) -> list[Wait]:
    """List a job's waits; its times plus ``epoch`` are seconds since the epoch."""
    return [
        wait._replace(until=round(wait.until + epoch, 3), again=wait.again and round(wait.again + epoch, 3))
        for wait in islice(_waits(job), _MOST)
    ]


def _waits(job: Job) -> Iterator[Wait]:
    if job.exit_code is not None:
        return
    yield from _waits_for_hosts(job)
    if job.phase is Phase.BACKING_OFF and job.deadlines.resume_at is not None:
        number = job.attempt + 1
        yield Wait(f"The backoff before attempt {number}", job.deadlines.resume_at, f"then attempt {number} starts")
    for process in policy.waiting(job) if job.phase is Phase.RUNNING else ():
        resume_at = job.tasks[process.task].resume_at
        if resume_at is not None and policy.is_ready(job, process):
            yield Wait(f"The backoff of {process.task}", resume_at, f"then {process.task} starts again")


def _waits_for_hosts(job: Job) -> Iterator[Wait]:
    ends_at = lost_hosts.wait_ends_at(job)
    for host in job.hosts.values():
        reason = f": {host.reason}" if host.reason else ""
        if host.phase is HostPhase.DISCONNECTED and host.fence_at is not None:
            yield Wait(f"{host.host} is silent{reason}", host.fence_at, "then its tasks count as dead")
        elif (until := lost_hosts.waited_for_until(job, host)) is not None:
            then = _END if ends_at is not None and until >= ends_at else "then the run goes on without it"
            yield Wait(f"{host.host} is lost{reason}", until, then, host.retry_at)
    joining = [host for host in job.hosts_in(HostPhase.JOINING) if not job.hosts[host].is_held]
    joining = joining if job.phase is Phase.JOINING else []
    if joining:
        reasons = "; ".join(dict.fromkeys(filter(None, (job.hosts[host].reason for host in joining))))
        what = f"{listed(joining)} must answer" + (f" ({reasons})" if reasons else "")
        yield Wait(what, job.join_by, "then those that do not count as unreachable")
