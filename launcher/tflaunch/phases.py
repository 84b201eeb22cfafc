"""How a job moves on: its phases, and how attempts of tasks start and end.

`advance` takes a job as far as its own state allows. The rest is what `supervisor` does when something
happens: `fail`, `stop_all`. Pure, like everything on this floor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tflaunch import plan as planning
from tflaunch import policy
from tflaunch.actions import Action, HoldPorts, JoinHost, LookUpNames, SendFiles, StartTask, StopTask
from tflaunch.plan import TaskPlan
from tflaunch.states import Cause, Culprit, HostPhase, Job, Phase, TaskPhase, TaskState
from tflaunch.tf_config import has_cluster

Step = tuple[Job, list[Action]]
"""What a step gives: the next job, and what is to be done."""


def advance(job: Job, now: float) -> Step:
    """Return the job where it comes to rest when nothing else happens."""
    actions: list[Action] = []
    while (take_phase := _PHASES.get(job.phase)) is not None:
        advanced, more = take_phase(job, now)
        actions += more
        if advanced.phase is job.phase:
            return advanced, actions
        job = advanced
    return job, actions


def _joining(job: Job, now: float) -> Step:
    if job.hosts_in(HostPhase.JOINING):
        return job, []
    away = job.hosts_in(HostPhase.AWAY)
    if away:
        message = "\n".join(f"{host}: {job.hosts[host].reason}" for host in away)
        culprit = Culprit(Cause.UNREACHABLE, ", ".join(away), job.attempt, None, None, message)
        return fail(job, culprit, now, may_retry=job.has_started)
    return (job, []) if job.hosts_in(HostPhase.UNHEARD, HostPhase.LEAVING) else _prepare(job)


def _join_again(job: Job, now: float) -> Step:
    """Start agents on the hosts that have none any more."""
    actions: list[Action] = []
    for host in job.hosts_in(HostPhase.AWAY):
        job = job.with_host(host, phase=HostPhase.JOINING, has_code=False, since=now)
        actions.append(JoinHost(host))
    return job._replace(phase=Phase.JOINING, join_by=policy.join_limit(job.plan, now)), actions


def _prepare(job: Job) -> Step:
    """Give every host the user's code; ask it what the others' names mean to it, and for ports for its tasks.

    A fixed port stays, another one is chosen anew.
    """
    names = policy.names_to_find(job.original)
    wanted: dict[str, dict[str, int]] = {}
    if has_cluster(job.plan.strategy):
        ports = planning.wanted_ports(job.original)
        for process in job.plan.tasks:
            wanted.setdefault(process.host, {})[process.task] = ports[process.task]
    job = job._replace(phase=Phase.PREPARING, ports={}, plan=job.original, unknown_names=frozenset(names))
    actions: list[Action] = [SendFiles(host) for host in policy.lacks_code(job)]
    actions += [LookUpNames(host, wanted_names) for host, wanted_names in names.items()]
    return job, actions + [HoldPorts(host, ports) for host, ports in wanted.items()]


def _preparing(job: Job, now: float) -> Step:
    needed = {process.task for process in job.plan.tasks} if has_cluster(job.plan.strategy) else set()
    if policy.lacks_code(job) or job.unknown_names or not needed <= job.ports.keys():
        return job, []
    job = job._replace(
        phase=Phase.RUNNING,
        plan=planning.resolve(job.original, job.ports),
        attempt_started_at=now,
        is_complete=not policy.forms_cluster(job.plan),
        culprit=None,
        resume_at=None,
        finish_by=None,
        was_warned=False,
    )
    return _start(job, job.plan.processes(), job.attempt, now)


def _start(job: Job, processes: tuple[TaskPlan, ...], attempt: int, now: float) -> Step:
    tasks = dict(job.tasks)
    actions: list[Action] = []
    for process in processes:
        earlier = tasks[process.task]
        tasks[process.task] = TaskState(process.task, TaskPhase.STARTING, attempt, since=now, restarts=earlier.restarts)
        actions.append(StartTask(process.host, process.task, attempt))
    return job._replace(tasks=tasks), actions


def _running(job: Job, now: float) -> Step:
    if policy.has_succeeded(job):
        limit = job.plan.timeouts.finish
        patience = job.plan.timeouts.grace if limit is None else limit
        return _stop_servers(job._replace(phase=Phase.DRAINING, exit_code=0, finish_by=now + patience))
    actions: list[Action] = []
    for task in list(job.tasks.values()):
        if task.phase is TaskPhase.GONE and task.resume_at is not None and now >= task.resume_at:
            job, more = _start(job, (job.plan.find(task.task),), task.attempt + 1, now)
            actions += more
    return job, actions


def _stop_servers(job: Job) -> Step:
    """End what never ends by itself and is needed by nobody any more; sidecars stay to the last."""
    servers = [
        process
        for process in job.plan.tasks
        if not policy.ends_by_itself(job.plan, process) and job.tasks[process.task].is_alive
    ]
    return _stop(job, servers, job.plan.timeouts.grace)


def _draining(job: Job, now: float) -> Step:
    for process in job.plan.tasks:
        if policy.ends_by_itself(job.plan, process) and job.tasks[process.task].is_alive:
            return job, []
    return stop_all(job._replace(phase=Phase.STOPPING), job.plan.timeouts.grace)


def _stopping(job: Job, now: float) -> Step:
    if job.alive():
        return job, []
    phase = Phase.ENDED if job.resume_at is None else Phase.BACKING_OFF
    return job._replace(phase=phase), []


def _backing_off(job: Job, now: float) -> Step:
    if job.resume_at is None or now < job.resume_at:
        return job, []
    attempt = 1 + max(task.attempt for task in job.tasks.values())
    job = job._replace(attempt=attempt)
    is_whole = len(job.hosts_in(HostPhase.JOINED)) == len(job.hosts)
    return _prepare(job) if is_whole else _join_again(job, now)


_PHASES: Mapping[Phase, Callable[[Job, float], Step]] = {
    Phase.JOINING: _joining,
    Phase.PREPARING: _preparing,
    Phase.RUNNING: _running,
    Phase.DRAINING: _draining,
    Phase.STOPPING: _stopping,
    Phase.BACKING_OFF: _backing_off,
}


def fail(job: Job, culprit: Culprit, now: float, may_retry: bool) -> Step:
    """End the current attempt: all others are victims. Another attempt follows if the budget allows."""
    wait = policy.next_wait(job.plan.restart, job.restarts, now) if may_retry else None
    if wait is None:
        job = job._replace(exit_code=policy.exit_code(culprit, job.has_started), resume_at=None)
    else:
        job = job._replace(restarts=(*job.restarts, now), resume_at=now + wait)
    is_failure = culprit.cause in (Cause.TASK, Cause.NOT_STARTED, Cause.HOST)
    grace = policy.survivor_grace(job.plan) if is_failure else job.plan.timeouts.grace
    return stop_all(job._replace(phase=Phase.STOPPING, culprit=culprit, failed_at=now), grace)


def stop_all(job: Job, grace: float) -> Step:
    """End everything that lives: TERM, and KILL after ``grace`` seconds."""
    living = [process for process in job.plan.processes() if job.tasks[process.task].is_alive]
    return _stop(job, living, grace)


def _stop(job: Job, processes: list[TaskPlan], grace: float) -> Step:
    actions: list[Action] = []
    for process in processes:
        task = job.tasks[process.task]
        job = job.with_task(task, is_stopping=True)
        actions.append(StopTask(process.host, process.task, task.attempt, grace))
    return job, actions
