"""What happens to a job as time passes, and when something is due next. Pure."""

from tflaunch.core import lost_hosts, policy
from tflaunch.core.actions import AbandonHost
from tflaunch.core.events import TimePassed
from tflaunch.core.hosts import give_up, not_reached
from tflaunch.core.job_state import Cause, Culprit, Job, Phase
from tflaunch.core.phases import Step, fail
from tflaunch.core.states import HELD, SPARE, HostPhase, TaskPhase
from tflaunch_worker.readable import duration_words


def next_deadline(job: Job) -> float | None:
    """Return when `step` needs a `TimePassed`; None for never."""
    times = [*(host.fence_at for host in job.timed_hosts()), job.deadlines.confirm_by]
    if job.exit_code is None and job.phase is not Phase.STOPPING:
        times.append(_deadline_at(job))
    if job.hosts.count(HostPhase.JOINING, (SPARE, HostPhase.JOINING)) > job.hosts.count(HELD):
        times.append(job.join_by)
    match job.phase:
        case Phase.RUNNING:
            times += _deadlines_while_running(job)
        case Phase.WAITING_FOR_HOSTS:
            is_short = not lost_hosts.can_do_without(job, job.hosts_in(HostPhase.DOWN))
            times += [lost_hosts.wait_ends_at(job), *(host.retry_at for host in job.timed_hosts() if is_short)]
        case Phase.SAVING:
            times.append(job.deadlines.save_by)
        case Phase.DRAINING:
            finish_by = job.deadlines.finish_by or 0.0
            times.append(max(finish_by if policy.is_ending(job) else 0.0, job.deadlines.settles_at))
        case Phase.BACKING_OFF if policy.are_hosts_settled(job):
            times.append(job.deadlines.resume_at)
    return min((time for time in times if time is not None), default=None)


def _deadlines_while_running(job: Job) -> list[float | None]:
    times = [*(host.retry_at for host in job.timed_hosts()), lost_hosts.grows_at(job)]
    times.append(None if job.deadlines.was_late else job.deadlines.late_at)
    for process in policy.waiting(job):
        task = job.tasks[process.task]
        if task.phase is TaskPhase.GONE and task.resume_at is not None and policy.is_ready(job, process):
            times.append(task.resume_at)
    if policy.is_debugged(job):
        return times
    if not job.formation.is_complete:
        times.append(None if job.formation.was_warned else _warn_at(job))
    return [*times, job.deadlines.finish_by]


def on_time(job: Job, event: TimePassed, now: float) -> Step:
    """Return the job after time has passed."""
    over = [host for host in job.timed_hosts() if host.fence_at is not None and now >= host.fence_at]
    within = f"for {duration_words(policy.fence(job.plan))}"
    silent = [host for host in over if host.phase is HostPhase.DISCONNECTED]
    dead = {host.host: f"{host.reason}, and it was not heard again {within}" for host in silent}
    job, actions = give_up(job, dead, now, is_silent=True)
    leaving = {host.host: f"{host.reason}, and it has not ended {within}" for host in over if host not in silent}
    job, more = give_up(job, {**leaving, **_stuck(job, now)}, now, is_unconfirmed=True)
    actions += more
    job = policy.expect_ends(job)
    late = [*job.hosts_in(HostPhase.JOINING), *job.spares_in(HostPhase.JOINING)] if now >= job.join_by else []
    for host in [host for host in late if not job.hosts[host].is_held]:
        within = duration_words(job.plan.timeouts.connect)
        job, more = not_reached(job, host, f"its agent did not answer within {within}", now)
        actions += [AbandonHost(host), *more]
    job, more = _on_time_of_job(job, now)
    return job, actions + more


def _stuck(job: Job, now: float) -> dict[str, str]:
    """Return the hosts whose stopped tasks did not end in time."""
    if job.deadlines.confirm_by is None or now < job.deadlines.confirm_by:
        return {}
    times = ((task.task, policy.confirm_by(job, task)) for task in job.alive())
    late = [task for task, time in times if time is not None and time <= now]
    return {job.plan.find(task).host: f"{task} does not end there after KILL" for task in late}


def _on_time_of_job(job: Job, now: float) -> Step:
    deadline = _deadline_at(job)
    is_open = job.exit_code is None and job.phase is not Phase.STOPPING
    if deadline is not None and now >= deadline and is_open:
        limit = duration_words(job.plan.timeouts.deadline or 0)
        message = f"stopped: not finished within timeouts.deadline ({limit}); raise it, e.g. --set timeouts.deadline=1h"
        return fail(job, Culprit(Cause.TIME, "deadline", job.attempt, message), now, may_retry=False)
    return _on_time_running(job, now) if job.phase is Phase.RUNNING else (job, [])


def _on_time_running(job: Job, now: float) -> Step:
    is_debugged = policy.is_debugged(job)
    if job.deadlines.finish_by is not None and now >= job.deadlines.finish_by and not is_debugged:
        late = ", ".join(name for name in job.success_tasks if not job.tasks[name].has_succeeded)
        after = f"{duration_words(job.plan.timeouts.finish or 0)} after the first task had finished"
        message = f"stopped: {late} still ran {after} (timeouts.finish)"
        return fail(job, Culprit(Cause.TIME, "finish", job.attempt, message), now, may_retry=False)
    if now >= _warn_at(job) and not job.formation.is_complete and not is_debugged:
        job = job._replace(formation=job.formation._replace(was_warned=True, is_past_start=True))
    if job.deadlines.late_at is not None and now >= job.deadlines.late_at:
        job = job._replace(deadlines=job.deadlines._replace(was_late=True))
    return job, []


def _deadline_at(job: Job) -> float | None:
    limit = job.plan.timeouts.deadline
    return None if limit is None else job.started_at + limit


def _warn_at(job: Job) -> float:
    """Return when the tasks that do not listen are reported, if there are any then."""
    began = job.attempt_started_at, job.deadlines.left_breakpoint_at or 0.0, policy.all_started_at(job)
    return max(began) + policy.WARN_AFTER
