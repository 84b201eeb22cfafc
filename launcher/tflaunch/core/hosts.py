"""Handle events about a job's hosts. Pure.

A host whose link is lost is not dead: its tasks may still be training. They are certainly dead only after their
agent has ended or the fence (`policy.fence`) has passed, and may be restarted only then.
"""

from collections.abc import Mapping

from tflaunch.core import events, lost_hosts, policy, restart_budget, restart_rules, spares
from tflaunch.core.actions import AbandonHost, Action, SendFiles
from tflaunch.core.job_state import Cause, Culprit, Job, Phase
from tflaunch.core.phases import Step, fail, save, welcome
from tflaunch.core.states import CODE, HostPhase, HostState, TaskPhase, TaskState, Unended
from tflaunch.plan import gpu_shares
from tflaunch.plan.model import TaskPlan

_NOT_CONFIRMED = "its host has not confirmed its end"


def on_link_lost(job: Job, event: events.LinkLost, now: float) -> Step:
    """Return the job after the link to a host was lost; its tasks may go on."""
    host = job.hosts[event.host]
    since = host.since if host.phase is HostPhase.DISCONNECTED else now
    # Each loss starts the fence again: the agent may have renewed its lease over the link until then.
    host = host._replace(phase=HostPhase.DISCONNECTED, since=since, fence_at=now + policy.fence(job.plan))
    return policy.expect_ends(job.with_host(host._replace(reason=event.reason))), []


def on_link_restored(job: Job, event: events.LinkRestored, now: float) -> Step:
    """Return the job after a link was restored, maybe to a leaving agent."""
    host = job.hosts[event.host]
    if not event.is_leaving:
        host = host._replace(phase=HostPhase.CONNECTED, fence_at=None, since=now)
        return policy.expect_ends(job.with_host(host)), []
    job = job.with_host(host._replace(phase=HostPhase.LEAVING, fence_at=now + policy.fence(job.plan)))
    if job.plan.lease:  # `HostLeaving` follows, and says why, unless it came before the link was lost
        return job, []
    return _blame(job, host, host.reason, now, since=host.since)


def on_lost(job: Job, event: events.HostLost, now: float) -> Step:
    """Return the job after the agent on a host has ended, and with it all its tasks."""
    job, actions = give_up(job, {event.host: event.reason}, now)
    return (_refuse_restart(job, event.host) if event.is_faulty else job), actions


# ---- joining hosts


def on_delayed(job: Job, event: events.HostDelayed, now: float) -> Step:
    """Return the job after a host was not reached yet."""
    state = job.hosts[event.host]
    if state.is_held and not event.is_held:
        job = job._replace(join_by=policy.join_limit(job.plan, now))
    return job.with_host(state._replace(reason=event.reason, is_held=event.is_held)), []


def on_unreachable(job: Job, event: events.HostUnreachable, now: float) -> Step:
    """Return the job after no agent could be started on a host."""
    return not_reached(job._replace(join_by=policy.join_limit(job.plan, now)), event.host, event.reason, now)


def on_joined(job: Job, event: events.HostJoined, now: float) -> Step:
    """Return the job after the agent on a host is ready."""
    state = job.hosts[event.host]
    state = state._replace(phase=HostPhase.CONNECTED, joined_at=now, away_since=None)
    state = state._replace(addresses=event.addresses, is_held=False)
    job = job._replace(join_by=policy.join_limit(job.plan, now)).with_host(state)
    too_few = gpu_shares.why_too_few(event.host, job.plan.on_host(event.host), event.gpus)
    if too_few and job.phase is Phase.JOINING and not job.has_started:
        return fail(job, Culprit(Cause.PORTS, event.host, job.attempt, too_few), now, may_retry=False)
    if state.is_spare:
        return job, [SendFiles(event.host)] if CODE in state.awaits else []
    return welcome(job, event.host) if job.phase is Phase.RUNNING else (job, [])


def not_reached(job: Job, host: str, reason: str, now: float) -> Step:
    """Count a failed join; if the job runs, retry the host's tasks or give them up."""
    job = _count_failure(job, host, reason, now)
    if job.phase is Phase.WAITING_FOR_HOSTS and not job.hosts[host].is_spare:
        return lost_hosts.try_later(job, host, now), []
    if job.phase is not Phase.RUNNING or job.hosts[host].is_spare:
        return job, []
    return _replace_tasks(job, host, now, is_out_of_reach=True)


def _count_failure(job: Job, host: str, reason: str, now: float) -> Job:
    """Mark a host as down, and count the loss, or begin to count again."""
    state = job.hosts[host]
    was_reached = state.phase is not HostPhase.JOINING
    was_well = was_reached and (state.is_drained or now - state.joined_at > job.plan.restart.window)
    failures = (0 if was_well else state.failures) + (was_reached or state.is_spare)
    if state.is_spare:
        retry_at = None if state.flaw else now + spares.rest_after(failures)
    else:
        retry_at = now + lost_hosts.rest_after(job.plan, failures, was_reached)
    away_since = now if state.away_since is None else state.away_since
    state = state._replace(retry_at=retry_at, failures=failures, away_since=away_since)
    return job.with_host(state._replace(phase=HostPhase.DOWN, reason=reason, fence_at=None, is_held=False))


# ---- losing hosts


def give_up(
    job: Job, reasons: Mapping[str, str], now: float, is_silent: bool = False, is_unconfirmed: bool = False
) -> Step:
    """Mark the tasks of these hosts as gone.

    ``is_silent``: they vanished without a sign, so that peers may never notice that their connections are dead;
    ``is_unconfirmed``: the tasks may still run, so that the job ends.
    """
    before = job
    actions: list[Action] = []
    # First the tasks of all hosts, then the blame: what is decided for one must not count tasks of another as alive.
    for name, reason in reasons.items():
        tasks: dict[str, TaskState] = {}
        there = job.plan.on_host(name)
        for process in there:
            task = job.tasks[process.task]
            if task.is_alive:
                was_lost = task.phase is not TaskPhase.EXITED
                resume_at = now if was_lost and not policy.in_gang(process) else task.resume_at
                unended = task.unended or (Unended(task.pid or 0, _NOT_CONFIRMED) if is_unconfirmed else None)
                task = task._replace(phase=TaskPhase.GONE, since=now, unended=unended)
                tasks[process.task] = task._replace(resume_at=None if unended else resume_at)
        lost = {process.task for process in there}
        ports = {task: port for task, port in job.ports.items() if task not in lost}
        job = job._replace(tasks=job.tasks.replaced(tasks), ports=ports)
        job = _count_failure(job, name, reason, now)
        actions.append(AbandonHost(name, tuple(process.task for process in there)))
    for name, reason in reasons.items():
        if before.hosts[name].is_spare:
            continue
        host = before.hosts[name]
        since = host.since if host.phase is HostPhase.DISCONNECTED else now
        job, more = _blame(job, host, reason, now, since)
        actions += more
        if job.phase is Phase.RUNNING:
            job, more = _replace_tasks(job, name, now, is_silent)
            actions += more
    if reasons and job.unended():
        job, more = _end_unconfirmed(job, reasons, now)
        actions += more
    return job, actions


def _end_unconfirmed(job: Job, reasons: Mapping[str, str], now: float) -> Step:
    """End a job some of whose tasks may still run, so that none starts again."""
    host, reason = next(iter(reasons.items()))
    culprit = Culprit(Cause.HOST, host, job.attempt, reason, now, host)
    if job.phase is Phase.STOPPING:
        return job._replace(culprit=job.culprit or culprit), []
    return fail(job, culprit, now, may_retry=False)


def _refuse_restart(job: Job, host: str) -> Job:
    """Rule out a restart if the job needs a host whose agent broke the protocol."""
    job = spares.rule_out(job, host, "its agent broke the protocol")
    if spares.ready(job):
        return job
    culprit = job.culprit
    is_cause = culprit is not None and (culprit.cause, culprit.name) == (Cause.HOST, host)
    if culprit is None or not is_cause or job.exit_code is not None or lost_hosts.can_do_without(job, {host}):
        return job
    code = restart_rules.exit_code(culprit, job.has_started)
    restarts = job.restarts._replace(no_retry_reason=f"the same would happen on {host} again")
    return job._replace(exit_code=code, restarts=restarts)


def _takes_all_along(job: Job, host: str) -> bool:
    """Whether the gang cannot continue without this host."""
    training = [task for task in job.plan.on_host(host) if policy.in_gang(task)]
    unfinished = [task for task in training if not job.tasks[task.task].has_succeeded]
    return any(not policy.restarts_alone(job.plan, task) for task in unfinished)


def on_leaving(job: Job, event: events.HostLeaving, now: float) -> Step:
    """Let the tasks of a drained host be saved, or blame a host whose agent gives up."""
    host = job.hosts[event.host]
    leaving = host._replace(phase=HostPhase.LEAVING, reason=event.reason, is_drained=event.is_drain)
    job = job.with_host(leaving._replace(fence_at=now + policy.fence(job.plan)))
    if event.is_drain:
        return _save(_doubt(job, event.host, now), event, now)
    was_away = host.phase in (HostPhase.DISCONNECTED, HostPhase.LEAVING)
    return _blame(job, host, event.reason, now, since=host.since if was_away else now)


def _doubt(job: Job, host: str, now: float) -> Job:
    """Take tasks for cut short that exited with 0 just before their host's drain."""
    if job.phase not in (Phase.RUNNING, Phase.SAVING, Phase.DRAINING):
        return job
    for process in job.plan.on_host(host):
        task = job.tasks[process.task]
        if task.has_succeeded and not task.is_stopping and now - task.since <= policy.SETTLES_WITHIN:
            resume_at = now if policy.restarts_alone(job.plan, process) else None
            job = job.with_task(task._replace(exit=task.exit._replace(was_cut_short=True), resume_at=resume_at))
    if job.phase is not Phase.DRAINING or policy.has_succeeded(job):
        return job
    return job._replace(phase=Phase.RUNNING, exit_code=None, deadlines=job.deadlines._replace(finish_by=None))


def _blame(job: Job, host: HostState, reason: str, now: float, since: float) -> Step:
    """Make a host the culprit, lost ``since`` then, unless something failed before."""
    if host.is_spare:
        return job, []
    culprit = Culprit(Cause.HOST, host.host, job.attempt, reason, now, host.host)
    if job.phase is Phase.PREPARING or (job.phase is Phase.RUNNING and _takes_all_along(job, host.host)):
        return fail(job, culprit, now, may_retry=True)
    return _accuse_instead(job, culprit, since), []


def _accuse_instead(job: Job, culprit: Culprit, since: float) -> Job:
    """Move the blame from a task to the host whose loss made it fail."""
    accused = job.culprit
    if job.phase is not Phase.STOPPING or accused is None or accused.cause is not Cause.TASK:
        return job
    if accused.host == culprit.host or since > job.failed_at + policy.BLAME_WINDOW:
        return job
    code = None if job.exit_code is None else restart_rules.exit_code(culprit, has_started=True)
    return job._replace(culprit=culprit, exit_code=code)


def _save(job: Job, event: events.HostLeaving, now: float) -> Step:
    """Give the gang time to save with the tasks of a drained host."""
    if not _takes_all_along(job, event.host):
        return job, []
    culprit = Culprit(Cause.DRAIN, event.host, job.attempt, event.reason, now, event.host)
    if job.phase is not Phase.RUNNING:
        return _accuse_instead(job, culprit, since=now), []
    return save(job, culprit, now), []


# ---- restarting tasks alone


def _replace_tasks(job: Job, host: str, now: float, is_silent: bool = False, is_out_of_reach: bool = False) -> Step:
    """Schedule the tasks of a lost host to restart alone, and retry the host.

    A spare host takes its place. Otherwise an elastic job continues without them. But a chief waits without limit for a
    worker whose connection was never closed (measured with TensorFlow 2.21), so the whole gang restarts in that case.
    """
    state = job.hosts[host]
    loss = Culprit(Cause.HOST, host, job.attempt, state.reason, now, host)
    waiting = [task for task in job.plan.on_host(host) if _is_missed(job, task)]
    actions: list[Action] = []
    if waiting and spares.ready(job):
        if not any(map(policy.in_gang, waiting)):  # the others know the address of a worker, which changes
            return _move_tasks(job, host, waiting, now)
        if is_silent or is_out_of_reach:  # otherwise only its agent has died, which soon runs again
            return fail(job, loss, now, may_retry=True)
    if job.plan.elastic is not None:
        for task in waiting:
            job = job.with_task(job.tasks[task.task]._replace(resume_at=now))
        is_stuck = is_silent and any(policy.in_gang(task) for task in waiting)
        if is_stuck or not all(lost_hosts.can_lose(job, task) for task in waiting):
            return fail(job, loss, now, may_retry=True)
        soonest = now + job.plan.restart.backoff[0]
        return job.with_host(state._replace(retry_at=max(state.retry_at or soonest, soonest))), []
    if waiting and is_out_of_reach and policy.waits_for_lost_hosts(job):
        return _wait_for(job, state, waiting, now)
    for task in waiting:
        job, more = replace_alone(job, task.task, _loss(job, state), now)
        actions += more
    due = [when for task in waiting if (when := job.tasks[task.task].resume_at) is not None]
    return job.with_host(job.hosts[host]._replace(retry_at=min(due, default=None))), actions


def _wait_for(job: Job, host: HostState, waiting: list[TaskPlan], now: float) -> Step:
    """Try a host later for tasks that restart alone, or give them up."""
    if host not in lost_hosts.overdue(job, now):
        return lost_hosts.try_later(job, host.host, now), []
    for task in waiting:
        job = job.with_task(job.tasks[task.task]._replace(resume_at=None))
    if all(lost_hosts.can_lose(job, task) for task in waiting):
        return job.with_host(host._replace(retry_at=None)), []
    return fail(job, lost_hosts.culprit_of(job, [host], now), now, may_retry=False)


def _loss(job: Job, host: HostState) -> restart_budget.Failure:
    """Return the failure of a task that was lost with its host, for the task's budget."""
    return restart_budget.Failure("", is_free=host.is_drained or policy.waits_for_lost_hosts(job))


def _move_tasks(job: Job, host: str, waiting: list[TaskPlan], now: float) -> Step:
    """Restart tasks alone on a spare host, as far as their budgets allow."""
    for task in waiting:
        job, actions = replace_alone(job, task.task, _loss(job, job.hosts[host]), now)
        if job.phase is not Phase.RUNNING:
            return job, actions
    spare = spares.ready(job)[0]
    job = spares.move_now(job, host, spare, now)
    for task in waiting:
        state = job.tasks[task.task]
        job = job.with_task(state._replace(resume_at=None if state.resume_at is None else now))
    return welcome(job, spare)


def _is_missed(job: Job, task: TaskPlan) -> bool:
    """Whether a task that was lost with its host has to run again."""
    state = job.tasks[task.task]
    was_lost = state.phase is TaskPhase.GONE and state.exit.code is None and state.exit.signal is None
    return policy.restarts_alone(job.plan, task) and (was_lost or state.resume_at is not None)


def replace_alone(job: Job, name: str, failure: restart_budget.Failure, now: float) -> Step:
    """Restart a task alone if its budget allows; else go on without it, or fail."""
    task = job.tasks[name]
    answer = restart_budget.decide_restart(task.budget, job.plan.restart, failure, now, f"{job.run} {name}")
    resume_at = None if answer.wait is None else now + answer.wait
    job = job.with_task(task._replace(budget=answer.budget, resume_at=resume_at))
    process = job.plan.find(name)
    if answer.wait is not None or lost_hosts.can_lose(job, process):
        return job, []
    culprit = Culprit(Cause.TASK, name, task.attempt, "", now, process.host, task.exit.code, task.exit.signal)
    if task.exit.code is None and task.exit.signal is None:
        culprit = culprit._replace(cause=Cause.HOST, name=process.host, message=job.hosts[process.host].reason)
    job = job._replace(restarts=job.restarts._replace(no_retry_reason=answer.no_retry_reason))
    return fail(job, culprit, now, may_retry=False)
