"""Messages about tasks and attempts that end or do not end."""

import signal
from collections.abc import Iterable

from tflaunch.core import policy
from tflaunch.core.events import Event, PortOpened, TaskExited, TaskGone, TaskNotStarted
from tflaunch.core.job_state import Cause, Job, Phase
from tflaunch.core.states import TaskState
from tflaunch.explain import cluster_formation, summary
from tflaunch.explain.causes import describe, describe_exit, left_behind, named
from tflaunch.explain.wording import listed
from tflaunch_worker.readable import duration_words, signal_name


def quiet_disaster(alone: list[str], why: str) -> list[str]:
    """Return a warning about tasks that have trained alone."""
    if not alone:
        return []
    what = f"warning: {listed(alone)} never opened their ports of TF_CONFIG:"
    if why:
        return [f"{what} each has trained alone", f"hint: {why}"]
    return [
        f"{what} unless the program finds its cluster in another way, each task has trained alone",
        "hint: a program that sets or drops TF_CONFIG, or is started through sudo, ssh or env -i, loses the one "
        'that tflaunch set; for tasks that do not train together, set "strategy": "none"',
    ]


def hint_news(before: Job, event: Event, after: Job, tail: summary.Tail) -> list[str]:
    """Return a hint for an evaluator or sidecar that failed for good."""
    task = after.tasks.get(event.task) if isinstance(event, TaskGone) else None
    if task is None or task is before.tasks[task.task] or not task.exit.code:
        return []
    if after.culprit is not None or task.resume_at is not None or task.is_stopping:
        return []
    if policy.in_gang(after.plan.find(task.task)):
        return []
    hint = summary.hint_for(after, task.task, tail)
    return [f"hint: {hint}"] if hint is not None else []


def task_news(before: Job, event: TaskExited | TaskNotStarted, after: Job, tail: summary.Tail) -> list[str]:
    """Return messages about a single task that ended while the job continues."""
    task = after.tasks.get(event.task)
    if task is None or task is before.tasks[event.task]:
        return []
    name = named(task.task, event.host, after.plan)
    if task.exit.code == 0 and not task.exit.was_cut_short:
        if isinstance(event, TaskExited) and event.evidence:
            return [f"warning: {left_behind(name, event.evidence)}"]
        missed = cluster_formation.servers_among(after.plan, [task.task] if after.phase is Phase.RUNNING else [])
        return cluster_formation.ended_sentence(missed)
    if after.phase is Phase.RUNNING:
        what = f"{name} {event.reason if isinstance(event, TaskNotStarted) else describe_exit(task)}"
        if isinstance(event, TaskExited) and event.went_to_background:
            what = left_behind(name, event.evidence)
        if task.resume_at is not None:
            exception = summary.exception_of(task, tail) if task.exit.code else ""
            return [f"{what}{exception}; it restarts alone in {duration_words(task.resume_at - task.since)}"]
        return [f"{what}; the job goes on without it"]
    if after.phase is Phase.DRAINING and not task.is_stopping:
        return [f"{name} {describe_exit(task)}, after the job had succeeded"]
    return []


def failure_news(before: Job, job: Job) -> list[str]:
    """Return messages about a failure: what failed, and which tasks are ended for it."""
    assert job.culprit is not None
    living = [task.task for task in job.alive() if task.is_stopping and task.task != job.culprit.name]
    grace = job.plan.timeouts.grace
    if job.culprit.cause is Cause.SIGNAL:
        return stop_news(job, living)
    if job.exit_code is not None:
        return []  # the summary will report it
    if job.phase is Phase.SAVING:
        preempted = ": preempted" if job.culprit.cause is Cause.TASK else ""
        return [f"{describe(job.culprit, job.plan)}{preempted}; the others have {duration_words(grace)} to save"]
    if before.culprit is not None and job.phase is before.phase:
        return [f"{describe(job.culprit, job.plan)} before that"]
    if job.culprit.cause is Cause.TASK:  # how it failed is said once all have ended and the culprit is certain
        failed = f"{named(job.culprit.name, job.culprit.host, job.plan)} failed"
        return [f"{failed}; ending {listed(living)}"] if living else []
    return [describe(job.culprit, job.plan) + (f"; ending {listed(living)}" if living else "")]


def stop_news(job: Job, living: list[str]) -> list[str]:
    """Return the message for a stop requested by a signal or from another terminal."""
    if not living:
        return []
    assert job.culprit is not None
    grace, stop = _grace_of(job.tasks[name] for name in living), job.plan.stop_signal
    said = job.culprit.message
    asked = said.removeprefix("ended by ")
    why = f", as {asked} asks" if asked != said else ""
    came = "" if job.culprit.signal == signal.SIGINT else f"got {signal_name(job.culprit.signal or 0)}"
    cause = f"{said or came}; " if (said or came) and not why else ""
    waits = f": sent {stop}, waiting up to {duration_words(grace)} for them to save" if grace else ""
    remedy = "; press Ctrl-C again to kill" if grace and not job.culprit.message else ""
    is_deaf = stop == "TERM" and job.plan.strategy == "multi_worker_mirrored" and job.formation.is_complete and grace
    note = " (TensorFlow catches TERM in these tasks and goes on, so it may take all of that)" if is_deaf else ""
    return [f"{cause}ending {listed(living)}{why}{waits}{note}{remedy}"]


def killed_news(before: Job, event: Event, after: Job) -> list[str]:
    """Return one message about all tasks that outlived their grace."""
    if isinstance(event, TaskExited) and after.phase is before.phase is Phase.RUNNING:
        ended = [after.tasks[event.task]] if after.tasks[event.task] is not before.tasks[event.task] else []
    elif before.phase is Phase.STOPPING and after.phase is not Phase.STOPPING:
        ended = list(after.tasks.values())
    else:
        return []
    killed = [task for task in ended if task.exit.outlived_grace]
    if not killed:
        return []
    grace = _grace_of(killed)
    names = " and ".join(task.task for task in killed) if len(killed) == 2 else listed([task.task for task in killed])
    verb = "was" if len(killed) == 1 else "were"
    remedy = "raise timeouts.grace if a checkpoint needs longer"
    return [f"{names} {verb} killed: still running {duration_words(grace)} after {after.plan.stop_signal}; {remedy}"]


def _grace_of(tasks: Iterable[TaskState]) -> float:
    return max((task.stop.grace or 0.0 for task in tasks if task.stop is not None), default=0.0)


def late_news(job: Job) -> list[str]:
    """Return a message about tasks that outlast others."""
    late = [task.task for task in policy.trainers(job.plan) if job.tasks[task.task].is_alive]
    finished = policy.finished(job)
    if not late or not finished:
        return []
    verb = "runs" if len(late) == 1 else "run"
    limit = "" if job.plan.timeouts.finish is not None else "; timeouts.finish limits that"
    return [f"{listed(late)} still {verb} {duration_words(policy.LATE_AFTER)} after {listed(finished)} finished{limit}"]


def return_news(before: Job, event: PortOpened, after: Job) -> list[str]:
    """Return a message if a worker that restarted alone listens again."""
    task = after.tasks.get(event.task)
    if task is None or task is before.tasks[event.task] or not before.formation.is_complete:
        return []
    is_back = task.attempt > 0 and policy.listens(after.plan, task.task)
    return [f"{task.task} is back: it listens again (attempt {task.attempt})"] if is_back else []


def verdict_news(before: Job, job: Job, now: float, tail: summary.Tail) -> str:
    """Return the message that another attempt follows, with its cause and wait."""
    assert job.deadlines.resume_at is not None
    wait = max(job.deadlines.resume_at - now, 0.0)
    has_advanced = job.restarts.budget.advanced > before.restarts.budget.advanced
    why = f" (not charged: {job.restarts.budget.furthest} is further than before)" if has_advanced else ""
    cause = summary.cause_of_restart(job, tail)
    return f"{cause}; {summary.restart_name(job)} in {duration_words(wait)}{why}"
