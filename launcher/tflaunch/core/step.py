"""Decide a job's next step: ``step(job, event, now)`` returns a job and actions.

Pure: no clock, no process, no socket. An event first changes the state it concerns, then the job advances
through its phases as far as it can.
"""

import signal
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from tflaunch.core import events, hosts, lost_hosts, policy, port_fence, preparation, restart_rules
from tflaunch.core.job_state import Cause, Culprit, Formation, Job, Phase, StateTable
from tflaunch.core.phases import Step, advance, fail, save, stop
from tflaunch.core.restart_budget import Reached
from tflaunch.core.states import LIVING, Breakpoint, Exit, HostPhase, HostState, TaskPhase, TaskState, Unended
from tflaunch.core.time_limits import on_time
from tflaunch.plan.model import Plan

_NOT_AWAITED = "it was not waited for after the third signal"


def begin_job(run: str, plan: Plan, now: float) -> Job:
    """Return the initial job, whose hosts are being joined."""
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
        formation=Formation(cluster_formed=not policy.forms_cluster(plan)),
    )


def _new_host(plan: Plan, host: str, now: float) -> HostState:
    stands_for = "" if host in plan.spares else host
    return HostState(host, awaits=policy.awaited_at_first(plan, host), since=now, stands_for=stands_for)


def step(job: Job, event: events.Event, now: float) -> Step:
    """Return the job after ``event`` at ``now``, and the actions to take."""
    if job.phase is Phase.ENDED:
        return job, []
    before = job
    rule = RULES[type(event)]
    job, actions = rule.handle(job, event, now) if _state_of(job, event) in rule.states else (job, [])
    # The limits first: an event may have ended a pause at a breakpoint, whose time does not count.
    job, more = advance(policy.restart_limits(before, job, now), now)
    return job, [*actions, *more, *port_fence.updates(before, job)]


def _state_of(job: Job, event: events.Event) -> Enum:
    """Return the phase of the task, the host or the job that an event is about."""
    if isinstance(event, events.TaskEvent):
        task = job.tasks.get(event.task)
        # It may be of an earlier attempt: agents send events again that were on their way when a link broke.
        return task.phase if task is not None and task.attempt == event.attempt else TaskPhase.GONE
    return job.phase if (host := getattr(event, "host", None)) is None else job.hosts[host].phase


# ---- tasks


def _on_started(job: Job, event: events.TaskStarted, now: float) -> Step:
    task = job.tasks[event.task]._replace(pid=event.pid, preload=event.preload, tensorflow=event.tensorflow)
    if event.attempt == job.attempt and not job.formation.is_complete:
        job = job._replace(formation=job.formation._replace(started_at=now))
    return job.with_task(task._replace(phase=TaskPhase.RUNNING, since=now)), []


def _on_port_opened(job: Job, event: events.PortOpened, now: float) -> Step:
    job = job.with_task(job.tasks[event.task]._replace(is_port_open=True, port=event.port))
    if job.formation.is_complete or not policy.is_open(job):  # it stays complete while one worker restarts
        return job, []
    return job._replace(formation=job.formation._replace(is_complete=True, cluster_formed=True)), []


def _on_gone(job: Job, event: events.TaskGone, now: float) -> Step:
    task = job.tasks[event.task]
    reached = task.reached.furthest(Reached(checkpoint=event.checkpoint))
    return job.with_task(task._replace(phase=TaskPhase.GONE, since=now, reached=reached, unended=None)), []


def _on_lingering(job: Job, event: events.TaskLingers, now: float) -> Step:
    return job.with_task(job.tasks[event.task]._replace(unended=Unended(event.pid, event.reason))), []


def _on_breakpoint(job: Job, event: events.BreakpointReached | events.BreakpointLeft, now: float) -> Step:
    task = job.tasks[event.task]
    if isinstance(event, events.BreakpointReached):
        return job.with_task(task._replace(breakpoint=Breakpoint(event.file, event.line, event.function))), []
    job = job.with_task(task._replace(breakpoint=None))
    if not event.is_quit:
        return job, []
    return _stop_for_user(job, f"the debugger of {task.task}", job.plan.timeouts.grace, now)


def _on_not_started(job: Job, event: events.TaskNotStarted, now: float) -> Step:
    task = job.tasks[event.task]
    job = job.with_task(task._replace(phase=TaskPhase.EXITED, exit=Exit(event.code), since=now))
    if job.phase is not Phase.RUNNING or lost_hosts.can_lose(job, job.plan.find(task.task)):
        return job, []
    culprit = Culprit(Cause.NOT_STARTED, task.task, event.attempt, event.reason, host=event.host, code=event.code)
    return fail(job, culprit, now, may_retry=False)


def _on_exited(job: Job, event: events.TaskExited, now: float) -> Step:
    task, process = job.tasks[event.task], job.plan.find(event.task)
    lived = now - task.since
    ended = Exit(
        culprit_of(task, event).code,
        event.signal,
        event.failure,
        was_stopped=task.is_stopping or event.was_told,
        was_cut_short=policy.is_cut_short(job, event),
        outlived_grace=policy.outlived_grace(task, event),
    )
    reached, metrics = Reached(event.step, event.epoch), tuple(event.metrics.items())
    task = task._replace(phase=TaskPhase.EXITED, exit=ended, since=now, reached=reached, metrics=metrics)
    job = job.with_task(task)
    if ended.code == 0 and not ended.was_cut_short and not event.suspended:
        if lived >= policy.SETTLES_WITHIN:
            job = _settling(job, now + policy.SETTLES_WITHIN)
        return (_note_first_finish(job, task, now) if job.phase is Phase.RUNNING else job), []
    # The job is failing already: this exit can only change who is to blame.
    if policy.in_gang(process) and job.phase in (Phase.SAVING, Phase.STOPPING):
        return _reconsider(job, culprit_of(task, event), event), []
    # An elastic job goes on without a worker whose training is in the background, unobserved.
    is_spared = event.went_to_background and lost_hosts.can_lose(job, process)
    if task.is_stopping or job.exit_code is not None or is_spared:
        return job, []
    # It was told to end by its host, which is leaving, and not by us: it is not the culprit.
    if ended.was_cut_short:
        resume_at = now if policy.restarts_alone(job.plan, process) else None
        return job.with_task(task._replace(resume_at=resume_at)), []
    culprit = culprit_of(task, event)
    would_fail_again = policy.in_gang(process) and restart_rules.why_hopeless(job, task.task) != ""
    is_hopeless = event.went_to_background or (would_fail_again and not culprit.forked_from)
    if policy.restarts_alone(job.plan, process) and not is_hopeless:
        if culprit.forked_from:
            job = job._replace(unforked=restart_rules.why_unforked(culprit))
        failure = restart_rules.failure_of_task(job, culprit, event, lived)
        return hosts.replace_alone(job, task.task, failure, now)
    # Peers of a preempted task may be saving the same checkpoint, and get the grace for it.
    if restart_rules.is_preemption(event.code, event.signal) and event.signal is None:
        return save(job, culprit, now), []
    return fail(job, culprit, now, may_retry=not event.went_to_background)


def _settling(job: Job, settles_at: float) -> Job:
    return job._replace(deadlines=job.deadlines._replace(settles_at=max(job.deadlines.settles_at, settles_at)))


def culprit_of(task: TaskState, event: events.TaskExited) -> Culprit:
    """Return the culprit that a task is by its exit, given its state before or after."""
    cause, code = (Cause.BACKGROUND, 1) if event.went_to_background else (Cause.TASK, event.code)
    culprit = Culprit(cause, event.task, event.attempt, event.evidence, event.at, event.host)
    forked_from = restart_rules.forked_from(task, event)
    return culprit._replace(code=code, signal=event.signal, failure=event.failure, forked_from=forked_from)


def _reconsider(job: Job, earlier: Culprit, event: events.TaskExited) -> Job:
    """Move the blame to a task that failed earlier, or to a suspended one."""
    culprit = job.culprit
    if culprit is None or culprit.cause is not Cause.TASK:
        return job
    if event.suspended and restart_rules.may_have_lost_peer(culprit):
        accused = Culprit(Cause.SUSPENDED, event.task, event.attempt, event.suspended, host=event.host)
        explanation = f"it did not answer its peers, and {culprit.name} failed"
        accused = accused._replace(code=culprit.code, signal=culprit.signal, explanation=explanation)
        return job._replace(culprit=accused)
    if event.was_told or event.code == 0 or event.host == culprit.host or event.at >= culprit.time:
        return job
    code = None if job.exit_code is None else restart_rules.exit_code(earlier, has_started=True)
    return job._replace(culprit=earlier, exit_code=code)


def _note_first_finish(job: Job, task: TaskState, now: float) -> Job:
    """Start the limits for tasks that train when the first one succeeds."""
    limit, deadlines, process = job.plan.timeouts.finish, job.deadlines, job.plan.find(task.task)
    if not policy.in_gang(process) or not policy.ends_by_itself(job.plan, process):
        return job
    if deadlines.late_at is None and policy.forms_cluster(job.plan):
        deadlines = deadlines._replace(late_at=now + policy.LATE_AFTER)
    if deadlines.finish_by is None and limit is not None:
        deadlines = deadlines._replace(finish_by=now + limit)
    return job._replace(deadlines=deadlines)


# ---- users and time


def _on_interrupt(job: Job, event: events.Interrupted, now: float) -> Step:
    """Stop the tasks; from the second signal on, without their grace."""
    if event.is_announced:  # tasks that have got the signal, too, may exit with 0 before it follows
        return _settling(job._replace(is_told_to_end=True), now + policy.EXPLAINED_WITHIN), []
    job = job._replace(interrupts=job.interrupts + 1, is_told_to_end=False)
    if job.interrupts >= policy.MOST_INTERRUPTS:
        living = {process.host: _NOT_AWAITED for process in job.plan.processes() if job.tasks[process.task].is_alive}
        return hosts.give_up(job, living, now, is_unconfirmed=True)
    is_urgent = job.phase is Phase.STOPPING
    grace = 0.0 if is_urgent else job.plan.timeouts.grace
    if not job.exit_code:
        culprit = Culprit(Cause.SIGNAL, "tflaunch", job.attempt, event.why, signal=event.signal)
        job = job._replace(culprit=culprit, exit_code=128 + event.signal)
    return _end(job, grace, now, is_urgent)


def _on_stop_requested(job: Job, event: events.StopRequested, now: float) -> Step:
    return _stop_for_user(job, "`tflaunch down`", event.grace, now)


def _stop_for_user(job: Job, where: str, grace: float, now: float) -> Step:
    """Stop the job as its user asks; less grace than before stops it sooner."""
    if job.exit_code is None:
        culprit = Culprit(Cause.SIGNAL, "tflaunch", job.attempt, f"ended by {where}", signal=int(signal.SIGTERM))
        job = job._replace(culprit=culprit, exit_code=restart_rules.exit_code(culprit, job.has_started))
    return _end(job, grace, now, is_urgent=grace == 0)


def _end(job: Job, grace: float, now: float, is_urgent: bool) -> Step:
    """Stop all tasks; agents that are not reached do so when the lease expires."""
    disconnected = {host: job.hosts[host].reason for host in job.hosts_in(HostPhase.DISCONNECTED) if is_urgent}
    job = job._replace(phase=Phase.STOPPING, deadlines=job.deadlines._replace(resume_at=None))
    job, actions = hosts.give_up(job, disconnected, now, is_unconfirmed=True)
    job, more = stop(job, job.plan.processes(), grace, now)
    return job, actions + more


def _on_restart_requested(job: Job, event: events.RestartRequested, now: float) -> Step:
    """Restart one task alone if its strategy allows that, otherwise the whole gang."""
    process = next((process for process in job.plan.processes() if process.task == event.task), None)
    if process is None or not policy.can_be_restarted_alone(job.plan, process):
        message = f"a restart of {event.task or 'all tasks'} was asked for"
        culprit = Culprit(Cause.REQUEST, event.task or "tflaunch", job.attempt, message)
        return fail(job, culprit, now, may_retry=True)
    job = job.with_task(job.tasks[event.task]._replace(resume_at=now))
    return stop(job, [process], job.plan.timeouts.grace, now)


def _on_hung(job: Job, event: events.JobHung, now: float) -> Step:
    """End an attempt that hangs, unless a user debugs it."""
    if event.attempt != job.attempt or policy.is_debugged(job):
        return job, []
    culprit = Culprit(Cause.TIME, "stall", job.attempt, event.message, failure=event.place)
    return fail(job, culprit, now, may_retry=True)


# ---- which event counts in which state


class Rule(NamedTuple):
    """The handler of a kind of event, and the phases of task, host or job for it.

    In any other phase the event is stale, and ignored: its task or host was given up while it was on its way.
    """

    handle: Callable[[Job, Any, float], Step]
    states: Iterable[Enum]


_JOINING, _THERE = (HostPhase.JOINING,), tuple(phase for phase in HostPhase if phase is not HostPhase.DOWN)
_NOT_ENDED = tuple(phase for phase in Phase if phase is not Phase.ENDED)

RULES: Mapping[type[events.Event], Rule] = {
    events.HostJoined: Rule(hosts.on_joined, _JOINING),
    events.HostDelayed: Rule(hosts.on_delayed, (*_JOINING, HostPhase.DISCONNECTED)),
    events.HostUnreachable: Rule(hosts.on_unreachable, _JOINING),
    events.LinkLost: Rule(hosts.on_link_lost, _THERE),
    events.LinkRestored: Rule(hosts.on_link_restored, _THERE),
    events.HostLeaving: Rule(hosts.on_leaving, _THERE),
    events.HostLost: Rule(hosts.on_lost, _THERE),
    events.HostPrepared: Rule(preparation.on_prepared, HostPhase),
    events.HostRefused: Rule(preparation.on_refused, HostPhase),
    events.NamesResolved: Rule(preparation.on_names_resolved, HostPhase),
    events.CheckpointCopied: Rule(preparation.on_checkpoint_copied, HostPhase),
    events.PortsHeld: Rule(preparation.on_ports_held, HostPhase),
    events.PortsRefused: Rule(preparation.on_ports_refused, HostPhase),
    events.PeersProbed: Rule(preparation.on_peers_probed, HostPhase),
    events.PeerSeen: Rule(port_fence.on_peer_seen, HostPhase),
    events.OutsiderRefused: Rule(port_fence.on_outsider_refused, HostPhase),
    events.PortUnfenced: Rule(port_fence.on_port_unfenced, HostPhase),
    events.TaskStarted: Rule(_on_started, LIVING),
    events.TaskNotStarted: Rule(_on_not_started, LIVING),
    events.PortOpened: Rule(_on_port_opened, LIVING),
    events.BreakpointReached: Rule(_on_breakpoint, LIVING),
    events.BreakpointLeft: Rule(_on_breakpoint, LIVING),
    events.TaskExited: Rule(_on_exited, LIVING),
    events.TaskLingers: Rule(_on_lingering, LIVING),
    events.TaskGone: Rule(_on_gone, LIVING),
    events.Interrupted: Rule(_on_interrupt, _NOT_ENDED),
    events.StopRequested: Rule(_on_stop_requested, _NOT_ENDED),
    events.RestartRequested: Rule(_on_restart_requested, (Phase.RUNNING,)),
    events.JobHung: Rule(_on_hung, (Phase.RUNNING,)),
    events.TimePassed: Rule(on_time, _NOT_ENDED),
}
"""Every kind of event; `tests/unit/test_event_table.py` writes the table into docs/architecture.md."""
