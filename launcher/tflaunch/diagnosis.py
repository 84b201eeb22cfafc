"""What happened, in words: the news while a job runs, the summary at its end. Explains, never decides."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tflaunch import policy
from tflaunch.events import Event, HostLost, LinkLost, LinkRestored, TaskExited, TaskNotStarted, TaskStarted
from tflaunch.states import Cause, Culprit, HostPhase, Job, Phase, TaskState

_TAIL_LINES = 10
_MANY = 8


def news(before: Job, event: Event, after: Job, logs: str) -> list[str]:
    """Return what a person wants to read about one step of the supervisor; mostly nothing.

    Args:
        before: the job before the step.
        event: what happened.
        after: the job after the step.
        logs: where the logs are.
    """
    lines = []
    is_running = after.phase is Phase.RUNNING
    is_first = not after.attempt and not any(task.pid for task in before.tasks.values())
    if is_running and is_first and isinstance(event, TaskStarted):
        lines.append(f"run {after.run}: {_counted(len(after.plan.tasks), 'task')}, logs in {logs}")
    if isinstance(event, LinkLost | LinkRestored | HostLost):
        lines += _host_news(before, event, after)
    if isinstance(event, TaskExited | TaskNotStarted) and after.culprit is before.culprit:
        lines += _task_news(before, event, after)
    if after.culprit is not None and after.culprit is not before.culprit:
        lines += _failure_news(after)
    if after.was_warned and not before.was_warned:
        waiting = policy.unopened(after)
        if waiting and len(waiting) < len(after.deciders):
            lines.append(f"the cluster waits for {_listed(waiting)}: nobody listens on their ports yet")
    if is_running and before.phase is not Phase.RUNNING and after.attempt:
        lines.append(f"attempt {after.attempt} starts")
    return lines


def _host_news(before: Job, event: LinkLost | LinkRestored | HostLost, after: Job) -> list[str]:
    """A link that comes and goes while the job lives on."""
    was, phase = before.hosts[event.host].phase, after.hosts[event.host].phase
    lease = after.plan.lease
    match event:
        case LinkLost() if lease > 0 and was is not phase:
            return [f"lost the link to {event.host}: {event.reason}; its tasks live on for {lease:g} s"]
        case LinkRestored() if phase is HostPhase.JOINED:
            return [f"the link to {event.host} is restored"]
        case HostLost() if after.phase is Phase.RUNNING:
            return [f"the agent on {event.host} was lost: {event.reason}; the job goes on without it"]
    return []


def _task_news(before: Job, event: TaskExited | TaskNotStarted, after: Job) -> list[str]:
    """A task that ends alone while the job goes on."""
    task = after.tasks.get(event.task)
    if task is None or task is before.tasks[event.task]:
        return []
    if task.code == 0:
        process = after.plan.find(task.task)
        is_server = policy.fails_job(process) and not policy.ends_by_itself(after.plan, process)
        is_missed = is_server and after.phase is Phase.RUNNING
        return [f"{task.task} ended with code 0, though the job still needs it"] if is_missed else []
    if after.phase is Phase.RUNNING:
        what = event.reason if isinstance(event, TaskNotStarted) else describe_exit(task)
        if task.resume_at is not None:
            return [f"{task.task} {what}; it starts again alone in {task.resume_at - task.since:g} s"]
        return [f"{task.task} {what}; the job goes on without it"]
    if after.phase is Phase.DRAINING and not task.is_stopping:
        return [f"{task.task} {describe_exit(task)}, after the job had succeeded"]
    return []


def _failure_news(job: Job) -> list[str]:
    assert job.culprit is not None
    living = [task.task for task in job.alive() if task.task != job.culprit.name]
    if job.culprit.cause is Cause.SIGNAL:
        if not living:
            return []
        grace = job.plan.timeouts.grace
        return [f"ending {_listed(living)} ({grace:g} s to save); Ctrl-C again kills"]
    if job.resume_at is None:
        return []  # the summary will say it
    others = f"; ending {_listed(living)}" if living else ""
    wait = job.resume_at - job.restarts[-1]
    again = f"; restart {len(job.restarts)} in {wait:g} s"
    return [describe(job.culprit) + others + again]


def describe(culprit: Culprit) -> str:
    """Return a sentence about the first cause."""
    match culprit.cause:
        case Cause.TASK:
            return f"{culprit.name} {_exit_words(culprit.code, culprit.signal)}"
        case Cause.NOT_STARTED:
            return f"{culprit.name} did not start: {culprit.message}"
        case Cause.PORTS | Cause.NAMES | Cause.FILES | Cause.UNREACHABLE:
            return culprit.message
        case Cause.HOST:
            return f"host {culprit.name} was lost: {culprit.message}"
        case Cause.TIME:
            return f"time limit {culprit.name!r}: {culprit.message}"
        case Cause.SIGNAL:
            return f"interrupted by {signal_name(culprit.signal or 0)}"


def describe_exit(task: TaskState) -> str:
    """Return how a task's process ended, for example ``exited with code 7``."""
    return _exit_words(task.code, task.signal)


def _exit_words(code: int | None, number: int | None) -> str:
    return f"exited with code {code}" if number is None else f"was killed by {signal_name(number)}"


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9; ``signal 99`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def summary(job: Job, logs: str, tail: Callable[[str, int], list[str]]) -> str:
    """Return the last words about an ended job.

    Args:
        job: the job, ended.
        logs: where the logs are.
        tail: gives the last lines of a task's log.
    """
    if job.exit_code == 0:
        return _success(job)
    assert job.culprit is not None
    lines = [describe(job.culprit)]
    if job.culprit.cause is Cause.TASK:
        lines += _evidence(job, tail)
    if job.has_started and job.culprit.cause is not Cause.NOT_STARTED:
        lines.append(f"logs: {logs}")
    return "\n".join(lines)


def _success(job: Job) -> str:
    again = f", after {_counted(len(job.restarts), 'restart')}" if job.restarts else ""
    return f"done: {_counted(len(job.plan.tasks), 'task')}{again}"


def _evidence(job: Job, tail: Callable[[str, int], list[str]]) -> list[str]:
    assert job.culprit is not None
    lines = []
    last = tail(job.culprit.name, _TAIL_LINES)
    if last:
        lines.append(f"last lines of {job.culprit.name}:")
        lines += [f"    {line}" for line in last]
    victims = [task.task for task in job.tasks.values() if task.is_stopping and task.task != job.culprit.name]
    if victims:
        lines.append(f"ended because of it: {_listed(victims)}")
    if job.restarts:
        lines.append(f"the job had been restarted before: {_counted(len(job.restarts), 'time')}")
    elif policy.is_start_failure(job, job.culprit.code):
        lines.append("not restarted: it failed before the cluster had formed, and would again")
    return lines


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_MANY])
    return shown if len(names) <= _MANY else f"{shown} and {len(names) - _MANY} more"
