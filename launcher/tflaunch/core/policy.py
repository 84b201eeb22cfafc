"""Rules: when a job is done, what restarts together, and how long to wait.

They follow from how TensorFlow works. A MultiWorkerMirrored task can never rejoin its cluster, so the
gang restarts together. Worker and ps of a parameter_server job never exit, so the chief's exit ends
the job; a lost worker is replaced at its address, a lost ps or chief restarts the whole gang.
Evaluators and sidecars restart alone. A task that asks for a restart after saving has not failed.
"""

from collections.abc import Iterable

from tflaunch.clusterspec.values import ROLES
from tflaunch.core.events import TaskExited
from tflaunch.core.job_state import Cause, Culprit, Job, Phase
from tflaunch.core.states import (
    ALIVE,
    AT_BREAKPOINT,
    CODE,
    FIRST_NEEDS,
    NOT_LISTENING,
    SETUP,
    SUCCEEDED,
    WAITING,
    HostPhase,
    TaskPhase,
    TaskState,
)
from tflaunch.plan.model import SIDECAR, Plan, TaskPlan, role_of
from tflaunch.plan.tf_config import has_cluster, members

WARN_AFTER = 60.0
"""Seconds until tasks that do not listen are reported; importing TensorFlow may take that long."""

LATE_AFTER = 30.0
"""Seconds from the end of the first training task until those that still run are reported."""

SHORTEST_TRAINING = 2.0  # seconds

SETTLES_WITHIN = 0.5
"""Seconds after an exit with 0 in which it may become known that the task was ended from outside, with its host.

Schedulers, service managers and a node's shutdown send TERM to a task, its agent and its supervisor one by one, so that
a task which saves and exits with 0 may be quicker than the others. A task that has lived for less had nothing to save.
A failure waits as long for the signal to the supervisor, where that is explained.
"""

EXPLAINED_WITHIN = 90.0
"""Seconds for the command that says why tflaunch was asked to end; more than the patience with any such command."""

MOST_INTERRUPTS = 3
"""Signals to tflaunch, such as Ctrl-C, after which it waits for nothing any more."""

_TENSORFLOW = frozenset(("tensorflow", "tf_keras"))
"""Modules whose import is that of TensorFlow."""

_GANG = tuple(role for role in ROLES if role != "evaluator")
_JOIN_SLACK = 5.0  # seconds beyond timeouts.connect, so that each host can report why it was not reached
_FENCE_MARGIN = 5.0  # seconds for KILL to take effect, and for messages in transit
BLAME_WINDOW = 1.0
"""Seconds by which the loss of a host may be noticed after the failure of a victim elsewhere."""

_SURVIVOR_GRACE = 0.05
_KILL = 9
_CLOCK_ERROR = 1.0  # seconds by which the converted time of a host may be wrong: half of a slow round trip
_STACKS_GRACE = 10.0  # looking for the reason takes three, and writing the stacks may take some more


def success_tasks(plan: Plan) -> tuple[str, ...]:
    """Return the tasks that must exit with code 0."""
    if not plan.tasks:
        return tuple(sidecar.task for sidecar in plan.sidecars if sidecar.required)
    decisive = [task.task for task in plan.tasks if in_gang(task)]
    if plan.success == "chief":
        leader = "chief:0" if "chief:0" in decisive else "worker:0"
        return (leader,) if leader in decisive else tuple(decisive)
    return tuple(decisive) or tuple(task.task for task in plan.tasks)


def forms_cluster(plan: Plan) -> bool:
    """Whether the tasks wait for each other at the start."""
    return plan.strategy in ("multi_worker_mirrored", "parameter_server")


def unopened(job: Job) -> list[str]:
    """Return the tasks that do not listen yet, for which the others wait."""
    if not forms_cluster(job.plan):
        return []
    inside = members(job.plan.strategy)
    return [task.task for task in job.plan.tasks if task.role in inside and not job.tasks[task.task].is_port_open]


def waited_for(job: Job) -> list[str]:
    """Return the late tasks that keep the cluster from forming."""
    is_late = job.formation.was_warned and not job.formation.is_complete and len(_listening(job.plan)) > 1
    return unopened(job) if is_late else []


def all_started_at(job: Job) -> float:
    """Return when the last task of the attempt started, or the attempt began."""
    return max(job.attempt_started_at, job.formation.started_at)


def is_overdue(job: Job, task: TaskState, now: float) -> bool:
    """Whether a task has run for `WARN_AFTER` without the port that others need."""
    has_warned = job.formation.was_warned and not job.formation.is_complete  # agree with what was said then
    began = all_started_at(job) if has_warned else task.since
    is_late = task.phase is TaskPhase.RUNNING and not task.is_port_open and now - began >= WARN_AFTER
    return is_late and listens(job.plan, task.task) and len(_listening(job.plan)) > 1


def is_open(job: Job) -> bool:
    """Whether all tasks started in this attempt listen on their ports."""
    inside = members(job.plan.strategy) if forms_cluster(job.plan) else ()
    return not job.tasks.count(*((NOT_LISTENING, role) for role in inside))


def finished(job: Job) -> list[str]:
    """Return the training tasks that have succeeded."""
    return [task.task for task in trainers(job.plan) if job.tasks[task.task].has_succeeded]


def outlived_grace(task: TaskState, event: TaskExited) -> bool:
    """Whether a task was killed because its grace was over."""
    stop = task.stop
    if stop is None or event.signal != _KILL or stop.grace is None or stop.grace <= _SURVIVOR_GRACE:
        return False
    return event.at >= stop.kill_at - min(_CLOCK_ERROR, stop.grace / 2)


def is_cut_short(job: Job, event: TaskExited) -> bool:
    """Whether its leaving host ended a task, which is not done, even with 0."""
    host = job.hosts[event.host]
    is_told = event.was_told or (event.code == 0 and host.is_drained)  # the one who drains it may have told the task
    return host.phase is HostPhase.LEAVING and is_told


def trained_alone(job: Job, now: float) -> list[str]:
    """Return the tasks that each trained by itself, and succeeded.

    If TF_CONFIG gets lost or the program overwrites it, each task trains by itself and succeeds. An attempt shorter
    than `SHORTEST_TRAINING` cannot have trained: importing TensorFlow takes longer, unless it was preloaded.
    """
    if job.formation.cluster_formed:
        return []  # in an earlier attempt; this one had nothing left to train
    alone = unopened(job)
    is_short = now - all_started_at(job) < SHORTEST_TRAINING
    if is_short and not all(_TENSORFLOW & set(job.tasks[task].preload.split(",")) for task in alone):
        return []
    return alone if 1 < len(alone) == len(_listening(job.plan)) else []


def listens(plan: Plan, task: str) -> bool:
    """Whether a task is a member of a cluster and others connect to its port."""
    return forms_cluster(plan) and role_of(task) in members(plan.strategy)


def _listening(plan: Plan) -> list[str]:
    inside = members(plan.strategy)
    return [task.task for task in plan.tasks if task.role in inside]


def has_succeeded(job: Job) -> bool:
    """Whether all tasks that decide the job's success have succeeded."""
    are_enough = job.tasks.count(SUCCEEDED) >= len(job.success_tasks)
    return are_enough and all(job.tasks[name].has_succeeded for name in job.success_tasks)


def in_gang(task: TaskPlan) -> bool:
    """Whether the task trains with the others, unlike evaluators and sidecars."""
    return task.role in _GANG


def gang_tasks(job: Job) -> list[TaskPlan]:
    """Return the tasks that train together in this attempt."""
    return [task for task in job.plan.tasks if in_gang(task)]


def gang_alive(job: Job) -> bool:
    """Whether any process of the gang may be alive."""
    return _living(job, _GANG) > 0


def _living(job: Job, roles: Iterable[str]) -> int:
    return job.tasks.count(*((ALIVE, role) for role in roles))


def waiting(job: Job) -> list[TaskPlan]:
    """Return the processes scheduled to restart alone, now or later."""
    if not job.tasks.count(WAITING):
        return []
    return [process for process in job.plan.processes() if job.tasks[process.task].resume_at is not None]


def restarts_alone(plan: Plan, task: TaskPlan) -> bool:
    """Whether a new attempt of this task can join the others while they keep running.

    A ParameterServerStrategy chief waits for a lost worker and accepts it again at the same address.
    """
    return not in_gang(task) or (plan.strategy == "parameter_server" and task.role == "worker")


def can_be_restarted_alone(plan: Plan, task: TaskPlan) -> bool:
    """Whether a user can restart this task alone."""
    return restarts_alone(plan, task) or plan.strategy == "none"


def is_ready(job: Job, task: TaskPlan) -> bool:
    """Whether a task can start alone: its host has code and setup, and holds its port."""
    has_port = task.role == SIDECAR or not has_cluster(job.plan.strategy) or task.task in job.ports
    host = job.hosts[task.host]
    return host.phase is HostPhase.CONNECTED and not host.awaits & FIRST_NEEDS and has_port


def is_due(job: Job, task: TaskPlan, now: float) -> bool:
    """Whether a task can start alone now."""
    state = job.tasks[task.task]
    is_time = state.phase is TaskPhase.GONE and state.resume_at is not None and now >= state.resume_at
    return is_time and is_ready(job, task)


def gang_started(job: Job) -> bool:
    """Whether every task of the gang runs or has succeeded."""
    states = [job.tasks[task.task] for task in gang_tasks(job)]
    is_under_way = job.phase in (Phase.RUNNING, Phase.DRAINING)
    return is_under_way and all(task.has_succeeded or task.phase is TaskPhase.RUNNING for task in states)


def are_hosts_settled(job: Job) -> bool:
    """Whether no host will soon be either connected or down."""
    return not job.hosts.count(HostPhase.DISCONNECTED, HostPhase.LEAVING)


def is_saving(job: Job) -> bool:
    """Whether a task is alive that may have something to save."""
    return _living(job, [role for role in _GANG if _role_ends(job.plan, role)]) > 0


def is_ending(job: Job) -> bool:
    """Whether a task that exits by itself is still alive in a job that has succeeded."""
    return _living(job, [role for role in ROLES if _role_ends(job.plan, role)]) > 0


def ends_by_itself(plan: Plan, task: TaskPlan) -> bool:
    """Whether the task's program exits by itself, unlike servers and sidecars."""
    return _role_ends(plan, task.role)


def _role_ends(plan: Plan, role: str) -> bool:
    is_server = plan.strategy == "parameter_server" and role in ("worker", "ps")
    return role != SIDECAR and not is_server


def survivor_grace(plan: Plan) -> float:
    """Return the seconds between TERM and KILL for the other tasks after a failure.

    TensorFlow catches TERM in a MultiWorkerMirrored task and continues; without the failed peer the tasks can
    neither train nor save together, so a longer grace gains nothing.
    """
    grace = plan.timeouts.grace
    return min(grace, _SURVIVOR_GRACE) if plan.strategy == "multi_worker_mirrored" else grace


def join_limit(plan: Plan, now: float) -> float:
    """Return the time by which the next agent must have answered."""
    pending = 0.0 if plan.made_hosts is None else plan.made_hosts.limit
    return now + pending + plan.timeouts.connect + _JOIN_SLACK


def fence(plan: Plan) -> float:
    """Return the seconds after which tasks of a disconnected host are dead.

    Its agent stops them by itself: with TERM when the lease expires, and with KILL after the grace.
    """
    return plan.lease + plan.timeouts.grace + _FENCE_MARGIN


def waits_for_lost_hosts(job: Job) -> bool:
    """Whether the job waits for hosts that were there at the start."""
    return job.has_started and job.plan.timeouts.lost_host > 0


def confirm_by(job: Job, task: TaskState) -> float | None:
    """Return when a stopped task's end must be confirmed; None if the fence decides.

    A process may not die (state D, a frozen cgroup), and a host may lie, so the wait must end without them.
    """
    host = job.hosts[job.plan.find(task.task).host]
    if task.stop is None or not task.is_alive or host.phase is HostPhase.DISCONNECTED:
        return None
    was_away = host.since > host.joined_at  # it may have got the order only when the link was restored
    return max(task.stop.kill_at, host.since + job.plan.timeouts.grace if was_away else 0.0) + fence(job.plan)


def first_confirm_by(job: Job) -> float | None:
    """Return the first such time of all tasks."""
    return min((time for task in job.alive() if (time := confirm_by(job, task)) is not None), default=None)


def expect_ends(job: Job) -> Job:
    """Return the job that waits for the ends of its stopped tasks until that time."""
    return job._replace(deadlines=job.deadlines._replace(confirm_by=first_confirm_by(job)))


def awaited_at_first(plan: Plan, host: str) -> frozenset[str]:
    """Return the needs of a new agent on a host: the user's code and the setup."""
    lacks_code = plan.sync is not None and not plan.host(host).is_like_here
    return frozenset(what for what, is_lacking in ((CODE, lacks_code), (SETUP, plan.has_setups)) if is_lacking)


def lacks_code(job: Job, host: str) -> bool:
    """Whether the user's code has not been copied yet to a host that is not down."""
    return CODE in job.hosts[host].tags


def trainers(plan: Plan) -> list[TaskPlan]:
    """Return the tasks that train and exit by themselves."""
    return [task for task in plan.tasks if in_gang(task) and ends_by_itself(plan, task)]


def stop_grace(plan: Plan, culprit: Culprit) -> float:
    """Return the seconds between TERM and KILL, given the culprit."""
    if has_hung(culprit):
        return _STACKS_GRACE
    if culprit.cause in (Cause.TASK, Cause.NOT_STARTED, Cause.BACKGROUND, Cause.HOST):
        return survivor_grace(plan)
    return plan.timeouts.grace


def has_hung(culprit: Culprit) -> bool:
    """Whether a limit shows that tasks hang, so that their stacks are of use."""
    return culprit.cause is Cause.TIME and culprit.name != "deadline"


# ---- tasks at a `breakpoint()`: the others wait for them, and that is not a hang. While one waits for a debugger, the
# limits ``stall`` and ``finish`` do not end the job; afterwards they start again in full.


def is_debugged(job: Job) -> bool:
    """Whether a task waits at a breakpoint."""
    return job.tasks.count(AT_BREAKPOINT) > 0


def can_hang(job: Job) -> bool:
    """Whether silence counts: the gang runs, at no breakpoint, on connected hosts."""
    if job.phase is not Phase.RUNNING or is_debugged(job):
        return False
    alive = [task for task in gang_tasks(job) if job.tasks[task.task].is_alive]
    return bool(alive) and all(
        job.hosts[task.host].phase is HostPhase.CONNECTED and job.tasks[task.task].phase is TaskPhase.RUNNING
        for task in alive
    )


def restart_limits(before: Job, job: Job, now: float) -> Job:
    """Start the limits of a job again once no task is at a breakpoint."""
    if not is_debugged(before) or is_debugged(job):
        return job
    finish, finish_by = job.plan.timeouts.finish, job.deadlines.finish_by
    if job.phase is Phase.RUNNING and finish is not None and finish_by is not None:
        finish_by = max(finish_by, now + finish)
    return job._replace(deadlines=job.deadlines._replace(left_breakpoint_at=now, finish_by=finish_by))
