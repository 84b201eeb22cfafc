"""Move a job through its phases, and start and end attempts of tasks. Pure.

`advance` takes a job as far as its state allows. Event handlers (`step`, `hosts`, `preparation`) use the rest, such as
`fail` and `stop`.
"""

from collections.abc import Callable, Iterable, Mapping

from tflaunch.core import lost_hosts, policy, preflight, restart_rules, spares
from tflaunch.core.actions import Action, HoldPorts, JoinHost, LookUpNames, SendFiles, StartTask, StopTask
from tflaunch.core.job_state import Cause, Culprit, Deadlines, Job, Phase, Preflight
from tflaunch.core.states import (
    CHECKPOINT,
    CODE,
    FIRST_NEEDS,
    NAMES,
    PEERS,
    SETUP,
    SPARE,
    HostPhase,
    Stop,
    TaskPhase,
    TaskState,
)
from tflaunch.errors import EXIT_INTERNAL
from tflaunch.plan import attempts
from tflaunch.plan.model import SIDECAR, TaskPlan
from tflaunch.plan.tf_config import has_cluster

Step = tuple[Job, list[Action]]
"""The next job, and the actions to take."""


def advance(job: Job, now: float) -> Step:
    """Return the job in the last phase that it reaches by itself, and the actions."""
    actions: list[Action] = []
    while (take_phase := _PHASES.get(job.phase)) is not None:
        advanced, more = take_phase(job, now)
        actions += more
        if advanced.phase is job.phase:
            return advanced, actions
        job = advanced
    return job, actions


# ---- reaching hosts


def _joining(job: Job, now: float) -> Step:
    if job.hosts.count(HostPhase.JOINING):
        return job, []
    if not job.has_started and job.hosts.count((SPARE, HostPhase.JOINING)):
        return job, []  # the preflight checks spare hosts, too
    job = spares.replace_lost(job, now)
    down = job.hosts_in(HostPhase.DOWN)
    if down and not lost_hosts.can_do_without(job, down):
        if policy.waits_for_lost_hosts(job):
            for host in down:
                job = lost_hosts.try_later(job, host, now)
            return job._replace(phase=Phase.WAITING_FOR_HOSTS), []
        message = "\n".join(f"{host}: {job.hosts[host].reason}" for host in down)
        culprit = Culprit(Cause.UNREACHABLE, ", ".join(down), job.attempt, message)
        return fail(job, culprit, now, may_retry=job.has_started)
    return _prepare(job) if policy.are_hosts_settled(job) else (job, [])


def _waiting_for_hosts(job: Job, now: float) -> Step:
    """Try lost hosts again until the next attempt can start."""
    job = spares.replace_lost(job, now)
    ends_at = lost_hosts.wait_ends_at(job)
    if ends_at is not None and now >= ends_at:
        return fail(job, lost_hosts.culprit_of(job, lost_hosts.overdue(job, now), now), now, may_retry=False)
    if lost_hosts.can_do_without(job, job.hosts_in(HostPhase.DOWN)):
        is_settled = policy.are_hosts_settled(job) and not job.hosts.count(HostPhase.JOINING)
        return _prepare(job) if is_settled else (job, [])
    return _retry_hosts(job, now)


def _retry_hosts(job: Job, now: float) -> Step:
    """Start agents on the hosts whose time to be tried again has come."""
    due = [host.host for host in job.timed_hosts() if host.retry_at is not None and now >= host.retry_at]
    return join_hosts(job, due, now) if due else (job, [])


def _join_again(job: Job, now: float) -> Step:
    """Start agents on hosts that are down, unless they rest and can be spared."""
    down = job.hosts_in(HostPhase.DOWN)
    resting = {host for host in down if (job.hosts[host].retry_at or now) > now}
    wanted = [host for host in down if host not in resting] if lost_hosts.can_do_without(job, resting) else down
    return join_hosts(job._replace(phase=Phase.JOINING), wanted, now)


def join_hosts(job: Job, hosts: Iterable[str], now: float) -> Step:
    """Start agents on these hosts."""
    joining = {}
    for host in hosts:
        state = job.hosts[host]._replace(
            phase=HostPhase.JOINING, is_drained=False, retry_at=None, since=now, is_warm=False
        )
        joining[host] = state._replace(awaits=policy.awaited_at_first(job.plan, host))
    job = job._replace(hosts=job.hosts.replaced(joining), join_by=policy.join_limit(job.plan, now))
    return job, [JoinHost(host) for host in joining]


# ---- before an attempt


def _prepare(job: Job) -> Step:
    """Request what the next attempt needs on each host.

    Fixed ports stay, others are chosen again. Workers of hosts that are down are left out; tasks that are still
    alive (evaluators, sidecars) keep what they have.
    """
    down = frozenset(job.hosts_in(HostPhase.DOWN))
    plan = attempts.without(attempts.moved(job.original, job.places), down)
    tasks = {process.task: job.tasks[process.task] for process in plan.processes()}
    excluded = {name: TaskState(name, attempt=task.attempt) for name, task in job.tasks.items() if name not in tasks}
    ports = {task: port for task, port in job.ports.items() if task in tasks and tasks[task].is_alive}
    names = preflight.names_to_find(plan, [host for host in job.hosts if host not in down], _to_check(job))
    asked = {
        host.host: host._replace(awaits=host.awaits & FIRST_NEEDS | ({NAMES} if host.host in names else frozenset()))
        for host in job.hosts.values()
    }
    job = job._replace(
        phase=Phase.PREPARING,
        plan=plan,
        tasks=job.tasks.replaced(excluded),
        hosts=job.hosts.replaced(asked),
        success_tasks=policy.success_tasks(plan),
        ports=ports,
        preflight=Preflight(),
        excluded_hosts=tuple(host for host in job.hosts if host in down),
    )
    actions: list[Action] = [SendFiles(host) for host in job.hosts if policy.lacks_code(job, host)]
    actions += [LookUpNames(host, wanted) for host, wanted in names.items()]
    job = _await_checkpoints(job)
    return job, actions + _hold_ports(job, to_prepare(job))


def _await_checkpoints(job: Job) -> Job:
    """Wait until a watcher has put the newest checkpoint on the hosts of the gang."""
    if job.plan.checkpoints is None:
        return job
    hosts = dict.fromkeys(task.host for task in to_prepare(job) if policy.in_gang(task))
    awaiting = {host: job.hosts[host]._replace(awaits=job.hosts[host].awaits | {CHECKPOINT}) for host in hosts}
    return job._replace(hosts=job.hosts.replaced(awaiting))


def _to_check(job: Job) -> list[str]:
    """Return the spare hosts that the preflight checks with the others."""
    is_first = not job.has_started and job.plan.preflight
    return [host for host in job.spares_in(HostPhase.CONNECTED) if not job.hosts[host].flaw] if is_first else []


def to_prepare(job: Job) -> list[TaskPlan]:
    """Return the tasks that are not alive and whose hosts are not down."""
    return [task for task in job.plan.tasks if _is_to_prepare(job, task)]


def _is_to_prepare(job: Job, task: TaskPlan) -> bool:
    return not job.tasks[task.task].is_alive and job.hosts[task.host].phase is not HostPhase.DOWN


def _hold_ports(job: Job, tasks: Iterable[TaskPlan]) -> list[Action]:
    if not has_cluster(job.plan.strategy):
        return []
    wanted: dict[str, dict[str, int]] = {}
    for task in tasks:
        wanted.setdefault(task.host, {})[task.task] = attempts.wanted_port(task)
    return [HoldPorts(host, ports_there) for host, ports_there in wanted.items()]


def welcome(job: Job, host: str) -> Step:
    """Prepare a host that returned for those of its tasks that restart alone."""
    actions: list[Action] = [SendFiles(host)] if policy.lacks_code(job, host) else []
    there = [task for task in job.plan.on_host(host) if task.role != SIDECAR]
    return job, actions + _hold_ports(job, [task for task in there if _is_to_prepare(job, task)])


def _preparing(job: Job, now: float) -> Step:
    is_awaited = job.hosts.count(CODE, SETUP, NAMES, PEERS, CHECKPOINT) > 0
    if is_awaited or not _are_ports_held(job) or not spares.are_checked(job):
        return job, []
    plan = attempts.resolve(job.plan, job.ports)
    if not job.preflight.are_peers_probed and not job.has_started:
        wanted = preflight.peers_to_try(plan, _to_check(job))
        asked = {host: job.hosts[host]._replace(awaits=job.hosts[host].awaits | {PEERS}) for host in wanted}
        job = job._replace(hosts=job.hosts.replaced(asked), preflight=Preflight(are_peers_probed=True))
        if wanted:
            return job, list(wanted.values())
    job = job._replace(
        phase=Phase.RUNNING,
        plan=plan,
        attempt_started_at=now,
        formation=job.formation._replace(is_complete=not policy.forms_cluster(job.plan), was_warned=False),
        deadlines=Deadlines(confirm_by=policy.first_confirm_by(job)),
        restarts=job.restarts._replace(last_failure=job.culprit or job.restarts.last_failure),
        culprit=None,
    )
    others = [process for process in job.plan.processes() if not policy.in_gang(process)]
    fresh = [process for process in others if job.tasks[process.task].phase is TaskPhase.IDLE]
    ready = [process for process in fresh if policy.is_ready(job, process)]
    return _start(job, [*policy.gang_tasks(job), *ready], job.attempt, now)


def _are_ports_held(job: Job) -> bool:
    if not has_cluster(job.plan.strategy):
        return True
    if not job.hosts.count(HostPhase.DOWN) and len(job.ports) < len(job.plan.tasks):
        return False  # the common case, decided without scanning every task
    return all(task.task in job.ports for task in to_prepare(job))


def _start(job: Job, processes: Iterable[TaskPlan], attempt: int, now: float) -> Step:
    tasks: dict[str, TaskState] = {}
    actions: list[Action] = []
    for process in processes:
        earlier = job.tasks[process.task]
        tasks[process.task] = TaskState(process.task, TaskPhase.STARTING, attempt, since=now, budget=earlier.budget)
        actions.append(StartTask(process.host, process.task, attempt, job.unforked))
    return job._replace(tasks=job.tasks.replaced(tasks)), actions


# ---- while it runs


def _running(job: Job, now: float) -> Step:
    if policy.has_succeeded(job):
        return _drain(job, now)
    grows_at = lost_hosts.grows_at(job)
    if grows_at is not None and now >= grows_at:
        back = ", ".join(lost_hosts.returned_hosts(job))
        culprit = Culprit(Cause.GROWTH, back, job.attempt, f"{back} is back")
        return fail(job, culprit, now, may_retry=True)
    actions: list[Action] = []
    for process in policy.waiting(job):
        if policy.is_due(job, process, now):
            job, more = _start(job, [process], job.tasks[process.task].attempt + 1, now)
            actions += more
    job, more = spares.warm_up(job)
    job, joining = _retry_hosts(job, now)
    return job, actions + more + joining


def _saving(job: Job, now: float) -> Step:
    if policy.has_succeeded(job):
        return _drain(job, now)
    save_by = job.deadlines.save_by
    if policy.is_saving(job) and (save_by is None or now < save_by):
        return job, []
    return stop(job._replace(phase=Phase.STOPPING), policy.gang_tasks(job), policy.survivor_grace(job.plan), now)


def _drain(job: Job, now: float) -> Step:
    """Stop the servers of a job that has succeeded: they never exit."""
    limit = job.plan.timeouts.finish
    patience = job.plan.timeouts.grace if limit is None else limit
    deadlines = job.deadlines._replace(finish_by=now + patience)
    job = job._replace(phase=Phase.DRAINING, culprit=None, exit_code=0, deadlines=deadlines)
    servers = [process for process in job.plan.tasks if not policy.ends_by_itself(job.plan, process)]
    return stop(job, servers, job.plan.timeouts.grace, now)


def _draining(job: Job, now: float) -> Step:
    finish_by = job.deadlines.finish_by
    is_awaited = policy.is_ending(job) and (finish_by is None or now < finish_by)
    if is_awaited or now < job.deadlines.settles_at:
        return job, []
    return stop(job._replace(phase=Phase.STOPPING), job.plan.processes(), job.plan.timeouts.grace, now)


# ---- the end of an attempt


def save(job: Job, culprit: Culprit, now: float) -> Job:
    """Return the job whose gang gets its grace to save before the attempt ends."""
    deadlines = job.deadlines._replace(save_by=now + job.plan.timeouts.grace)
    return job._replace(phase=Phase.SAVING, culprit=culprit, failed_at=now, deadlines=deadlines)


def fail(job: Job, culprit: Culprit, now: float, may_retry: bool) -> Step:
    """End the attempt; once its tasks are gone, it is decided whether another follows."""
    job = job._replace(phase=Phase.STOPPING, culprit=culprit, failed_at=now)
    grace = policy.stop_grace(job.plan, culprit)
    if may_retry:
        return stop(job, policy.gang_tasks(job), grace, now, policy.has_hung(culprit))
    job = job._replace(exit_code=restart_rules.exit_code(culprit, job.has_started))
    return stop(job, job.plan.processes(), grace, now, policy.has_hung(culprit))


def stop(job: Job, processes: Iterable[TaskPlan], grace: float, now: float, with_stacks: bool = False) -> Step:
    """Stop the living ones of these processes: TERM, and KILL after ``grace`` seconds."""
    tasks: dict[str, TaskState] = {}
    actions: list[Action] = []
    for process in processes:
        task = job.tasks[process.task]
        if task.is_alive:
            if task.stop is None or now + grace < task.stop.kill_at:  # its agent keeps the earlier of two times, too
                task = task._replace(stop=Stop(None if with_stacks else grace, now + grace))
            tasks[task.task] = task
            actions.append(StopTask(process.host, process.task, task.attempt, grace, with_stacks))
    if not tasks:
        return job, actions
    return policy.expect_ends(job._replace(tasks=job.tasks.replaced(tasks))), actions


def _stopping(job: Job, now: float) -> Step:
    if policy.gang_alive(job):
        return job, []
    if job.exit_code is None:
        job = _judge(job, now)
    if job.exit_code is None:
        return job._replace(phase=Phase.BACKING_OFF), []
    others = [process for process in job.plan.processes() if not job.tasks[process.task].is_stopping]
    job, actions = stop(job, others, job.plan.timeouts.grace, now)
    if job.alive():
        return job, actions
    if job.unended():  # the exit code says that something may still run
        job = job._replace(exit_code=EXIT_INTERNAL)
    return job._replace(phase=Phase.ENDED, deadlines=job.deadlines._replace(confirm_by=None)), actions


def _judge(job: Job, now: float) -> Job:
    """Decide whether another attempt follows, once all tasks have ended."""
    culprit = job.culprit
    assert culprit is not None
    if culprit.forked_from:
        job = job._replace(unforked=restart_rules.why_unforked(culprit))
    if culprit.cause in (Cause.GROWTH, Cause.REQUEST) and not job.unended():
        restarts = job.restarts._replace(requested=job.restarts.requested + 1)
        return job._replace(restarts=restarts, deadlines=job.deadlines._replace(resume_at=now))
    answer = restart_rules.decide(job, culprit, now)
    job = job._replace(restarts=job.restarts._replace(budget=answer.budget, no_retry_reason=answer.no_retry_reason))
    if answer.wait is None:
        return job._replace(exit_code=restart_rules.exit_code(culprit, job.has_started))
    is_moving = culprit.cause in (Cause.HOST, Cause.DRAIN) and spares.ready(job)
    resume_at = now if is_moving else now + answer.wait
    return job._replace(deadlines=job.deadlines._replace(resume_at=resume_at))


def _backing_off(job: Job, now: float) -> Step:
    if job.deadlines.resume_at is None or now < job.deadlines.resume_at or not policy.are_hosts_settled(job):
        return job, []
    attempt = 1 + max(task.attempt for task in job.tasks.values())
    job = spares.replace_lost(job._replace(attempt=attempt), now)
    is_whole = job.hosts.count(HostPhase.CONNECTED) == len(job.hosts) - job.hosts.count(SPARE)
    return _prepare(job) if is_whole else _join_again(job, now)


_PHASES: Mapping[Phase, Callable[[Job, float], Step]] = {
    Phase.JOINING: _joining,
    Phase.PREPARING: _preparing,
    Phase.RUNNING: _running,
    Phase.SAVING: _saving,
    Phase.DRAINING: _draining,
    Phase.STOPPING: _stopping,
    Phase.BACKING_OFF: _backing_off,
    Phase.WAITING_FOR_HOSTS: _waiting_for_hosts,
}
