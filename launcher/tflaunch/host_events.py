"""What becomes of a job when something happens to one of its hosts. Pure, like everything on this floor.

A host that cannot be heard is not dead: its tasks may live and train. Only its agent's end, or the fence
(`policy.fence`), makes them certainly dead, and only then may they be started again.
"""

from __future__ import annotations

from collections.abc import Mapping

from tflaunch import policy
from tflaunch.actions import AbandonHost, Action
from tflaunch.events import HostJoined, HostLeaving, HostLost, HostUnreachable, LinkLost, LinkRestored
from tflaunch.phases import Step, fail
from tflaunch.states import Cause, Culprit, HostPhase, HostState, Job, Phase, TaskPhase


def on_host_event(
    job: Job, event: HostJoined | HostUnreachable | LinkLost | LinkRestored | HostLeaving | HostLost, now: float
) -> Step:
    """An agent was reached or could not be, the link to it was lost or is back, or it has ended."""
    if isinstance(event, HostJoined | HostUnreachable):
        return _on_joining_news(job, event, now), []
    host = job.hosts[event.host]
    if host.phase is HostPhase.AWAY:
        return job, []  # it has been given up
    match event:
        case LinkLost():
            since = host.since if host.phase is HostPhase.UNHEARD else now
            fence_at = now + policy.fence(job.plan)
            unheard = {"phase": HostPhase.UNHEARD, "reason": event.reason, "since": since, "fence_at": fence_at}
            return job.with_host(event.host, **unheard), []
        case LinkRestored(is_leaving=False):
            return job.with_host(event.host, phase=HostPhase.JOINED, fence_at=None), []
        case LinkRestored():
            reason = f"nothing was heard of it for longer than the lease of {job.plan.lease:g} s"
            job = job.with_host(event.host, phase=HostPhase.LEAVING, fence_at=None)
            return _blame(job, host, reason, now)
        case HostLeaving():
            job = job.with_host(event.host, phase=HostPhase.LEAVING, fence_at=None)
            return _blame(job, host, event.reason, now)
        case HostLost():
            return give_up(job, {event.host: event.reason}, now)


def _on_joining_news(job: Job, event: HostJoined | HostUnreachable, now: float) -> Job:
    if job.hosts[event.host].phase is not HostPhase.JOINING:
        return job
    job = job._replace(join_by=policy.join_limit(job.plan, now))
    if isinstance(event, HostJoined):
        return job.with_host(event.host, phase=HostPhase.JOINED)
    return job.with_host(event.host, phase=HostPhase.AWAY, reason=event.reason)


def give_up(job: Job, reasons: Mapping[str, str], now: float) -> Step:
    """Count the tasks of these hosts as gone: they are certainly dead. ``reasons``: host to why it was lost."""
    before = job
    for name, reason in reasons.items():
        tasks = dict(job.tasks)
        for process in job.plan.on_host(name):
            if tasks[process.task].is_alive:
                tasks[process.task] = tasks[process.task]._replace(phase=TaskPhase.GONE, since=now)
        job = job._replace(tasks=tasks, unknown_names=job.unknown_names - {name})
        job = job.with_host(name, phase=HostPhase.AWAY, reason=reason, fence_at=None)
    actions: list[Action] = [
        AbandonHost(name, tuple(process.task for process in job.plan.on_host(name))) for name in reasons
    ]
    for name, reason in reasons.items():
        job, more = _blame(job, before.hosts[name], reason, now)
        actions += more
    return job, actions


def _blame(job: Job, host: HostState, reason: str, now: float) -> Step:
    """Make a host that was lost the culprit, unless something else had failed before."""
    culprit = Culprit(Cause.HOST, host.host, job.attempt, None, None, reason)
    is_needed = any(policy.fails_job(process) for process in job.plan.on_host(host.host))
    if job.phase is Phase.PREPARING or (job.phase is Phase.RUNNING and is_needed):
        return fail(job, culprit, now, may_retry=True)
    was_first = host.phase is HostPhase.UNHEARD and host.since <= job.failed_at
    if job.phase is Phase.STOPPING and job.culprit is not None and job.culprit.cause is Cause.TASK and was_first:
        # A task elsewhere failed because its peer could not be heard any more.
        code = None if job.exit_code is None else policy.exit_code(culprit, has_started=True)
        return job._replace(culprit=culprit, exit_code=code), []
    return job, []
