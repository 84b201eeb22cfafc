"""Decide what a job does next: ``step(job, event, now)`` returns the next job and the actions to take.

Pure: no clock, no process, no socket. An event first changes the state it concerns, then the job advances
through its phases as far as it can.
"""

from __future__ import annotations

import signal

from tflaunch.core import breakpoints, elastic, policy, restart_rules
from tflaunch.core.events import (
    BreakpointLeft,
    BreakpointReached,
    Event,
    FenceEvent,
    HostEvent,
    Interrupted,
    OutputResumed,
    OutputStalled,
    PortOpened,
    PreparationEvent,
    RestartRequested,
    StopRequested,
    TaskEvent,
    TaskExited,
    TaskGone,
    TaskLingers,
    TaskNotStarted,
    TaskStarted,
    TimePassed,
    UserRequest,
)
from tflaunch.core.host_state import HostPhase, HostState
from tflaunch.core.hosts import give_up, on_host_event, replace_alone
from tflaunch.core.job_state import Cause, Culprit, Formation, Job, Phase
from tflaunch.core.phases import Step, advance, fail, hold_own_ports, stop, stop_all
from tflaunch.core.port_fence import on_fence_event, updates
from tflaunch.core.preparation import on_preparation
from tflaunch.core.restart_budget import Reached
from tflaunch.core.task_state import Exit, TaskPhase, TaskState, Unended
from tflaunch.core.task_table import StateTable
from tflaunch.core.time_limits import on_time
from tflaunch.plan.model import Plan, TaskPlan

_NOT_AWAITED = "it was not waited for after the third signal"


def begin_job(run: str, plan: Plan, now: float) -> Job:
    """Return the initial job, whose hosts are being joined.

    Args:
        run: the run's name, unique on this machine.
        plan: what to run.
        now: seconds of the clock that every later step uses.
    """
    return Job(
        run=run,
        original=plan,
        plan=plan,
        phase=Phase.JOINING,
        tasks=StateTable({process.task: TaskState(process.task) for process in plan.processes()}),
        success_tasks=policy.success_tasks(plan),
        started_at=now,
        hosts=StateTable({host.host: _new_host(plan, host.host, now) for host in plan.hosts}),
        join_by=policy.join_limit(plan, now),
        ports={},
        formation=Formation(cluster_formed=not policy.forms_cluster(plan)),
    )


def _new_host(plan: Plan, host: str, now: float) -> HostState:
    stands_for = "" if host in plan.spares else host
    return HostState(host, awaits=policy.awaited_at_first(plan, host), since=now, stands_for=stands_for)


def step(job: Job, event: Event, now: float) -> Step:
    """Return the job after ``event`` at ``now``, and the actions to take."""
    if job.phase is Phase.ENDED:
        return job, []
    before = job
    job, actions = _react(job, event, now)
    # The limits first: an event may have ended a pause at a breakpoint, whose time does not count.
    job, more = advance(breakpoints.restart_limits(before, job, now), now)
    return job, [*actions, *more, *updates(before, job)]


# ---- events


def _react(job: Job, event: Event, now: float) -> Step:
    if isinstance(event, HostEvent):
        return on_host_event(job, event, now)
    if isinstance(event, PreparationEvent):
        return on_preparation(job, event, now)
    if isinstance(event, FenceEvent):
        return on_fence_event(job, event, now)
    if isinstance(event, UserRequest):
        return _on_request(job, event, now)
    if isinstance(event, TimePassed):
        return on_time(job, now)
    return _on_task_event(job, event, now)


# ---- tasks


def _on_task_event(job: Job, event: TaskEvent, now: float) -> Step:
    task = job.tasks.get(event.task)
    if task is None or task.attempt != event.attempt or not task.is_alive:
        return job, []  # stale event of an earlier attempt
    match event:
        case TaskStarted():
            started = {"pid": event.pid, "preload": event.preload, "tensorflow": event.tensorflow}
            if event.attempt == job.attempt and not job.formation.is_complete:
                job = job.with_formation(started_at=now)
            return job.with_task(task, phase=TaskPhase.RUNNING, since=now, **started), []
        case PortOpened():
            job = job.with_task(task, is_port_open=True)
            is_complete = job.formation.is_complete or policy.is_open(job)  # stays set while one worker restarts
            cluster_formed = job.formation.cluster_formed or is_complete
            return job.with_formation(is_complete=is_complete, cluster_formed=cluster_formed), []
        case TaskNotStarted():
            return _on_not_started(job, task, event, now)
        case TaskExited():
            return _on_exited(job, task, event, now)
        case TaskGone():
            reached = task.reached.furthest(Reached(checkpoint=event.checkpoint))
            job = job.with_task(task, phase=TaskPhase.GONE, since=now, reached=reached, unended=None)
            return _on_gone(job, job.plan.find(task.task))
        case TaskLingers() | OutputStalled() | OutputResumed():
            return _note_sign(job, task, event), []
        case BreakpointReached() | BreakpointLeft():
            return _on_breakpoint(job, task, event, now)


def _note_sign(job: Job, task: TaskState, event: TaskLingers | OutputStalled | OutputResumed) -> Job:
    if isinstance(event, TaskLingers):
        return job.with_task(task, unended=Unended(event.pid, event.reason))
    return job.with_task(task, is_stalled=isinstance(event, OutputStalled))


def _on_breakpoint(job: Job, task: TaskState, event: BreakpointReached | BreakpointLeft, now: float) -> Step:
    job = breakpoints.on_breakpoint(job, task, event)
    if isinstance(event, BreakpointReached) or not event.is_quit:
        return job, []
    return _stop_for_user(job, f"the debugger of {task.task}", job.plan.timeouts.grace, now)


def _on_not_started(job: Job, task: TaskState, event: TaskNotStarted, now: float) -> Step:
    job = job.with_task(task, phase=TaskPhase.EXITED, exit=Exit(event.code), since=now)
    if job.phase is not Phase.RUNNING or elastic.can_lose(job, job.plan.find(task.task)):
        return job, []
    about = (task.task, event.attempt, event.code, None, event.reason)
    culprit = Culprit(Cause.NOT_STARTED, *about, host=event.host)
    return fail(job, culprit, now, may_retry=False)


def _on_gone(job: Job, process: TaskPlan) -> Step:
    """Release the own port of a process that has ended, and request another one for its next start."""
    if process.own_port is None:
        return job, []
    job = job._replace(ports={task: port for task, port in job.ports.items() if task != process.task})
    return job, hold_own_ports(job)


def _on_exited(job: Job, task: TaskState, event: TaskExited, now: float) -> Step:
    process = job.plan.find(task.task)
    lived = now - task.since
    ended = Exit(
        culprit_of(event).code,
        event.signal,
        event.failure,
        was_stopped=task.is_stopping or event.was_told,
        was_cut_short=policy.is_cut_short(job, event),
        outlived_grace=policy.outlived_grace(task, event),
    )
    known = {"reached": Reached(event.step, event.epoch), "metrics": tuple(event.metrics.items())}
    job = job.with_task(task, phase=TaskPhase.EXITED, exit=ended, since=now, **known)
    if ended.code == 0 and not ended.was_cut_short and not event.suspended:
        if lived >= policy.SETTLES_WITHIN:
            job = job.with_deadlines(settles_at=max(job.deadlines.settles_at, now + policy.SETTLES_WITHIN))
        return (_note_first_finish(job, task, now) if job.phase is Phase.RUNNING else job), []
    # The job is failing already: this exit can only change who is to blame.
    if policy.in_gang(process) and job.phase in (Phase.SAVING, Phase.STOPPING):
        return _reconsider(job, event), []
    # An elastic job goes on without a worker whose training is in the background, where nobody sees it.
    is_spared = event.went_to_background and elastic.can_lose(job, process)
    if task.is_stopping or job.exit_code is not None or is_spared:
        return job, []
    # It was told to end by its host, which is leaving, and not by us: it is no culprit.
    if ended.was_cut_short:
        resume_at = now if policy.restarts_alone(job.plan, process) else None
        return job.with_task(job.tasks[task.task], resume_at=resume_at), []
    would_fail_again = policy.in_gang(process) and restart_rules.why_hopeless(job, task.task) != ""
    is_hopeless = event.went_to_background or would_fail_again
    if policy.restarts_alone(job.plan, process) and not is_hopeless:
        return replace_alone(job, task.task, restart_rules.failure_of_task(job, event, lived), now)
    culprit = culprit_of(event)
    # Peers of a preempted task may be saving the same checkpoint, and get the grace for it.
    if restart_rules.is_preemption(event.code, event.signal) and event.signal is None:
        job = job.with_deadlines(save_by=now + job.plan.timeouts.grace)
        return job._replace(phase=Phase.SAVING, culprit=culprit, failed_at=now), []
    return fail(job, culprit, now, may_retry=not event.went_to_background)


def culprit_of(event: TaskExited) -> Culprit:
    """Return the culprit that a task is by its exit."""
    cause, code = (Cause.BACKGROUND, 1) if event.went_to_background else (Cause.TASK, event.code)
    outcome = (event.attempt, code, event.signal, event.evidence)
    return Culprit(cause, event.task, *outcome, time=event.at, host=event.host, failure=event.failure)


def _reconsider(job: Job, event: TaskExited) -> Job:
    """Move the blame to a task on another host that failed earlier but was reported later, or to a suspended one."""
    culprit = job.culprit
    if culprit is None or culprit.cause is not Cause.TASK:
        return job
    if event.suspended and restart_rules.may_have_lost_peer(culprit):
        accused = Culprit(Cause.SUSPENDED, event.task, event.attempt, culprit.code, culprit.signal, event.suspended)
        explanation = f"it did not answer its peers, and {culprit.name} failed"
        return job._replace(culprit=accused._replace(host=event.host, explanation=explanation))
    if event.was_told or event.code == 0 or event.host == culprit.host or event.at >= culprit.time:
        return job
    earlier = culprit_of(event)
    code = None if job.exit_code is None else restart_rules.exit_code(earlier, has_started=True)
    return job._replace(culprit=earlier, exit_code=code)


def _note_first_finish(job: Job, task: TaskState, now: float) -> Job:
    """Start the limits for the tasks still training when the first training task succeeds."""
    limit, process = job.plan.timeouts.finish, job.plan.find(task.task)
    if not policy.in_gang(process) or not policy.ends_by_itself(job.plan, process):
        return job
    if job.deadlines.late_at is None and policy.forms_cluster(job.plan):
        job = job.with_deadlines(late_at=now + policy.LATE_AFTER)
    return job if limit is None or job.deadlines.finish_by is not None else job.with_deadlines(finish_by=now + limit)


# ---- users and time


def _on_request(job: Job, event: UserRequest, now: float) -> Step:
    match event:
        case Interrupted():
            return _on_interrupt(job, event, now)
        case StopRequested():
            return _stop_for_user(job, "`tflaunch down`", event.grace, now)
        case RestartRequested():
            return _on_restart_requested(job, event, now)


def _on_interrupt(job: Job, event: Interrupted, now: float) -> Step:
    """Stop the tasks with their grace, at the second Ctrl-C without; wait for nothing after the third."""
    if event.is_announced:  # tasks that have got the signal, too, may exit with 0 before it follows
        return job.with_deadlines(settles_at=now + policy.EXPLAINED_WITHIN), []
    job = job._replace(interrupts=job.interrupts + 1)
    if job.interrupts >= policy.MOST_INTERRUPTS:
        living = {process.host: _NOT_AWAITED for process in job.plan.processes() if job.tasks[process.task].is_alive}
        return give_up(job, living, now, is_unconfirmed=True)
    is_urgent = job.phase is Phase.STOPPING
    grace = 0.0 if is_urgent else job.plan.timeouts.grace
    if not job.exit_code:
        culprit = Culprit(Cause.SIGNAL, "tflaunch", job.attempt, None, event.signal, event.why)
        job = job._replace(culprit=culprit, exit_code=128 + event.signal)
    return _end(job, grace, now, is_urgent)


def _stop_for_user(job: Job, where: str, grace: float, now: float) -> Step:
    """Stop the job as its user asks with `tflaunch down` or in a debugger; less grace than before stops it sooner."""
    if job.exit_code is None:
        culprit = Culprit(Cause.SIGNAL, "tflaunch", job.attempt, None, int(signal.SIGTERM), f"ended by {where}")
        job = job._replace(culprit=culprit, exit_code=restart_rules.exit_code(culprit, job.has_started))
    return _end(job, grace, now, is_urgent=grace == 0)


def _end(job: Job, grace: float, now: float, is_urgent: bool) -> Step:
    """Stop all tasks. Agents that cannot be reached stop theirs when the lease expires."""
    disconnected = {host: job.hosts[host].reason for host in job.hosts_in(HostPhase.DISCONNECTED) if is_urgent}
    job = job.with_deadlines(resume_at=None)._replace(phase=Phase.STOPPING)
    job, actions = give_up(job, disconnected, now, is_unconfirmed=True)
    job, more = stop_all(job, grace, now)
    return job, actions + more


def _on_restart_requested(job: Job, event: RestartRequested, now: float) -> Step:
    """Restart one task alone if its strategy allows that, otherwise the whole gang."""
    if job.phase is not Phase.RUNNING:
        return job, []  # the phase has changed since the request was accepted
    process = next((process for process in job.plan.processes() if process.task == event.task), None)
    if process is None or not policy.can_be_restarted_alone(job.plan, process):
        message = f"a restart of {event.task or 'all tasks'} was asked for"
        culprit = Culprit(Cause.REQUEST, event.task or "tflaunch", job.attempt, None, None, message)
        return fail(job, culprit, now, may_retry=True)
    job = job.with_task(job.tasks[event.task], resume_at=now)
    return stop(job, [process], job.plan.timeouts.grace, now)


# ---- limits
