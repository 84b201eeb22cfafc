"""Rules: when a job is done, which tasks restart together, how often, and what its exit code is.

They follow from how TensorFlow works. A MultiWorkerMirrored task can never rejoin its cluster, so the
gang restarts together. Worker and ps of a parameter_server job never exit, so the chief's exit ends
the job; a lost worker is replaced at its address, a lost ps or chief restarts the whole gang.
Evaluators and sidecars restart alone. A task that asks for a restart after saving has not failed.
"""

from __future__ import annotations

from collections.abc import Iterable

from tflaunch.clusterspec.values import ROLES
from tflaunch.core.events import TaskExited
from tflaunch.core.job_state import (
    ALIVE,
    CODE,
    NOT_LISTENING,
    STALLED,
    SUCCEEDED,
    WAITING,
    Cause,
    Culprit,
    HostPhase,
    Job,
    Phase,
    TaskPhase,
    TaskState,
)
from tflaunch.core.restart_budget import ALIKE, QUICK, Failure, Reached
from tflaunch.errors import EXIT_INTERNAL, EXIT_PREFLIGHT, EXIT_TIMEOUT
from tflaunch.plan.model import SIDECAR, Plan, TaskPlan, role_of
from tflaunch.plan.tf_config import has_cluster, members
from tflaunch_worker import OUTPUT_SIGNATURE

WARN_AFTER = 60.0
"""Seconds until tasks that do not listen are reported; importing TensorFlow may take that long."""

LATE_AFTER = 30.0
"""Seconds from the end of the first training task until those that still run are reported."""

SHORTEST_TRAINING = 2.0  # seconds

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
_CLOCK_ERROR = 1.0  # seconds by which the converted time of a host may be wrong: half of a slow round trip
_STACKS_GRACE = 10.0  # looking for the reason takes three, and py-spy may take some more
_ABORT, _KILL, _TERM = 6, 9, 15
_FROM_OUTSIDE = (1, 2, _KILL, _TERM)  # HUP, INT, KILL, TERM
_ERRORS_OF_PEERS = frozenset(
    {"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError", "TimeoutError", "BrokenPipeError"}
    | {"ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError"}
)
"""Ends of the names of exceptions caused by a peer or the network; if all tasks raise one, a restart may still help."""
_PREEMPTED = (42, 128 + _TERM)  # exit codes of PreemptionCheckpointHandler (failure_handling_util.py)
_LAST_SIGNAL = 64
_PLAIN_CODES = frozenset(range(1, 256)) - frozenset(range(129, 129 + _LAST_SIGNAL))  # no shell codes for signals


def success_tasks(plan: Plan) -> tuple[str, ...]:
    """Return the tasks that must exit with code 0 for the job to succeed."""
    if not plan.tasks:
        return tuple(sidecar.task for sidecar in plan.sidecars if sidecar.required)
    decisive = [task.task for task in plan.tasks if in_gang(task)]
    if plan.success == "chief":
        leader = "chief:0" if "chief:0" in decisive else "worker:0"
        return (leader,) if leader in decisive else tuple(decisive)
    return tuple(decisive) or tuple(task.task for task in plan.tasks)


def forms_cluster(plan: Plan) -> bool:
    """Whether the tasks wait for each other at the start, so that there is a cluster that can form."""
    return plan.strategy in ("multi_worker_mirrored", "parameter_server")


def unopened(job: Job) -> list[str]:
    """Return the tasks that do not listen on their ports yet, so that the others wait for them."""
    if not forms_cluster(job.plan):
        return []
    inside = members(job.plan.strategy)
    return [task.task for task in job.plan.tasks if task.role in inside and not job.tasks[task.task].is_port_open]


def waited_for(job: Job) -> list[str]:
    """Return the tasks that keep the cluster from forming; [] before `WARN_AFTER` or for a single task."""
    is_late = job.formation.was_warned and not job.formation.is_complete and len(_listening(job.plan)) > 1
    return unopened(job) if is_late else []


def is_overdue(job: Job, task: TaskState, now: float) -> bool:
    """Whether a task has run for `WARN_AFTER` without listening on the port that others wait for."""
    has_warned = job.formation.was_warned and not job.formation.is_complete  # agree with what was said then
    began = job.attempt_started_at if has_warned else task.since
    is_late = task.phase is TaskPhase.RUNNING and not task.is_port_open and now - began >= WARN_AFTER
    return is_late and listens(job.plan, task.task) and len(_listening(job.plan)) > 1


def is_open(job: Job) -> bool:
    """Whether all tasks started in this attempt listen on their ports."""
    inside = members(job.plan.strategy) if forms_cluster(job.plan) else ()
    return not job.tasks.count(*((NOT_LISTENING, role) for role in inside))


def late(job: Job) -> list[str]:
    """Return the training tasks that still run while others have finished."""
    return [task.task for task in _trainers(job.plan) if job.tasks[task.task].is_alive]


def finished(job: Job) -> list[str]:
    """Return the training tasks that have succeeded."""
    return [task.task for task in _trainers(job.plan) if job.tasks[task.task].has_succeeded]


def outlived_grace(task: TaskState, event: TaskExited) -> bool:
    """Whether a stopped task was killed because its grace was over, and not earlier by somebody else."""
    stop = task.stop
    if stop is None or event.signal != _KILL or stop.grace is None or stop.grace <= _SURVIVOR_GRACE:
        return False
    return event.at >= stop.kill_at - min(_CLOCK_ERROR, stop.grace / 2)


def trained_alone(job: Job, now: float) -> list[str]:
    """Return the tasks of a job that succeeded although none was ever seen to listen on its port; else [].

    If TF_CONFIG gets lost or the program overwrites it, each task trains by itself and succeeds. An attempt shorter
    than `SHORTEST_TRAINING` cannot have trained: importing TensorFlow takes longer, unless it was preloaded.
    """
    alone = unopened(job)
    is_short = now - job.attempt_started_at < SHORTEST_TRAINING
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


def is_ready(job: Job, task: TaskPlan) -> bool:
    """Whether a task can start alone: its host is connected, has the user's code and holds the port."""
    needs_port = task.address is not None and (has_cluster(job.plan.strategy) or task.own_port is not None)
    has_port = not needs_port or task.task in job.ports
    return job.hosts[task.host].phase is HostPhase.CONNECTED and not lacks_code(job, task.host) and has_port


def is_due(job: Job, task: TaskPlan, now: float) -> bool:
    """Whether a task can start alone now, also for the first time if it has a port of its own, which none waits for."""
    state = job.tasks[task.task]
    is_time = state.phase is TaskPhase.GONE and state.resume_at is not None and now >= state.resume_at
    return (is_time or (state.phase is TaskPhase.IDLE and task.own_port is not None)) and is_ready(job, task)


def gang_started(job: Job) -> bool:
    """Whether every task of the gang runs or has succeeded."""
    states = [job.tasks[task.task] for task in job.plan.tasks if in_gang(task)]
    is_under_way = job.phase in (Phase.RUNNING, Phase.DRAINING)
    return is_under_way and all(task.has_succeeded or task.phase is TaskPhase.RUNNING for task in states)


def gang_runs(job: Job) -> bool:
    """Whether every task of the gang runs, and listens if others wait for it, or has succeeded."""
    return job.phase is Phase.RUNNING and all(
        _is_at_work(job, job.tasks[task.task]) for task in job.plan.tasks if in_gang(task)
    )


def _is_at_work(job: Job, task: TaskState) -> bool:
    listens = task.is_port_open or not forms_cluster(job.plan)
    return task.has_succeeded or (task.phase is TaskPhase.RUNNING and listens)


def are_hosts_settled(job: Job) -> bool:
    """Whether no host is leaving or disconnected; such a host will soon be either connected or down."""
    return not job.hosts.count(HostPhase.DISCONNECTED, HostPhase.LEAVING)


def is_saving(job: Job) -> bool:
    """Whether a task is alive that may have something to save; TensorFlow's servers have nothing."""
    return _living(job, [role for role in _GANG if _role_ends(job.plan, role)]) > 0


def is_ending(job: Job) -> bool:
    """Whether a task that exits by itself is still alive in a job that has succeeded."""
    return _living(job, [role for role in ROLES if _role_ends(job.plan, role)]) > 0


def is_stalled(job: Job) -> bool:
    """Whether every living task of the gang has been silent for longer than ``timeouts.stall``."""
    living = _living(job, _GANG)
    return living > 0 and living == job.tasks.count(*((STALLED, role) for role in _GANG))


def is_preemption(code: int | None, number: int | None) -> bool:
    """Whether a task that tflaunch did not stop was preempted, by its exit code or a TERM from outside."""
    return code in _PREEMPTED or number == _TERM


def ends_by_itself(plan: Plan, task: TaskPlan) -> bool:
    """Whether the task's program exits by itself; TensorFlow's servers and sidecars do not."""
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
    """Return the time by which the next agent must have answered, if the last one did at ``now``."""
    pending = 0.0 if plan.kubernetes is None else plan.kubernetes.pending
    return now + pending + plan.timeouts.connect + _JOIN_SLACK


def fence(plan: Plan) -> float:
    """Return the seconds after which the tasks of a disconnected host are certainly dead.

    Its agent stops them by itself: with TERM when the lease expires, and with KILL after the grace.
    """
    return plan.lease + plan.timeouts.grace + _FENCE_MARGIN


def waits_for_lost_hosts(job: Job) -> bool:
    """Whether the job waits for hosts that it has lost; never for hosts that were not there at the start."""
    return job.has_started and job.plan.timeouts.lost_host > 0


def confirm_by(job: Job, task: TaskState) -> float | None:
    """Return when the host of a task must have confirmed its end; None if it is not stopped, or the fence decides.

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


def awaited_at_first(plan: Plan, host: str) -> frozenset[str]:
    """Return what a host with a new agent still lacks: the user's code, if ``sync`` has to copy it there."""
    return frozenset({CODE} if plan.sync is not None and not plan.is_like_here(host) else ())


def lacks_code(job: Job, host: str) -> bool:
    """Whether the user's code has not been copied yet to a host that is not down."""
    return CODE in job.hosts[host].tags


def is_start_failure(job: Job, task: str) -> bool:
    """Whether the exit of a task is an ordinary error of its program during start-up.

    A failing import or a wrong argument will fail again in the same way. Start-up is over when the cluster has
    formed, when a task of the gang has begun to train, or after `WARN_AFTER` for a program that never opens its ports:
    it may have a cluster of its own. A checkpoint says nothing: it may be that of an earlier run.
    """
    ended = job.tasks[task].exit
    is_over = job.formation.is_start_over or any(_has_trained(job.tasks[each.task]) for each in gang_tasks(job))
    return ended.code in _PLAIN_CODES and ended.code not in _PREEMPTED and not is_over


def _has_trained(task: TaskState) -> bool:
    return bool(task.reached.step or task.reached.epoch)


def failure_of_gang(job: Job, culprit: Culprit) -> Failure:
    """Return the failure of an attempt of the gang, as `restart_budget.decide_restart` needs it."""
    reached = Reached()
    for task in job.plan.tasks:
        reached = reached.furthest(job.tasks[task.task].reached)
    if culprit.cause is Cause.TASK:
        is_free = is_preemption(culprit.code, culprit.signal)
        failure = job.tasks[culprit.name].exit.failure
        kind, what = _kind(culprit, failure, is_quick=job.failed_at - job.attempt_started_at < QUICK)
        # Where a chief trains alone, no other task can show at once that all fail alike.
        is_alone = culprit.name == "chief:0" and job.plan.strategy == "parameter_server"
        return Failure(kind, is_free, reached, what, most=2 if is_alone and is_own_error(failure) else ALIKE)
    kind = culprit.name if culprit.cause is Cause.TIME else ""
    is_free = culprit.cause is Cause.DRAIN or (culprit.cause is Cause.HOST and waits_for_lost_hosts(job))
    return Failure(kind, is_free, reached, f"timeouts.{kind}" if kind else "")


def failure_of_task(job: Job, event: TaskExited, lived: float) -> Failure:
    """Return the failure, for its own budget, of a task that restarts alone and ran ``lived`` seconds.

    The others continue to train, so a failure that takes longer than the window to recur is not counted.
    """
    kind, what = _kind(event, event.failure, is_quick=lived < QUICK)
    is_rare = lived >= job.plan.restart.window
    is_free = is_preemption(event.code, event.signal)
    return Failure("" if is_rare else kind, is_free, Reached(event.step, event.epoch), what)


def _kind(end: Culprit | TaskExited, failure: str, is_quick: bool) -> tuple[str, str]:
    """Return what identifies a failure of a program, for the budget and for users.

    It leaves out the task's name: if all tasks fail alike, the first one differs from attempt to attempt. A kill
    from outside is not the program's failure, but one that always comes soon after the start may be.
    """
    if end.signal is None:
        return f"exit {end.code} {failure}", failure if is_raised(failure) else f"exit code {end.code}"
    evidence = end.message if isinstance(end, Culprit) else end.evidence
    is_own = end.signal not in _FROM_OUTSIDE or bool(evidence)
    return f"signal {end.signal}" if is_own or is_quick else "", f"signal {end.signal}"


def is_raised(failure: str) -> bool:
    """Whether a failure signature is that of an exception."""
    return bool(failure) and not failure.startswith(OUTPUT_SIGNATURE)


def failure_of_all(job: Job) -> str:
    """Return the exception that all tasks of a failed attempt raised at the same line; "" if none."""
    failures = {job.tasks[task.task].exit.failure for task in _trainers(job.plan)}
    if len(failures) != 1 or len(_trainers(job.plan)) < 2:
        return ""
    failure = failures.pop()
    return failure if is_own_error(failure) else ""


def is_own_error(failure: str) -> bool:
    """Whether a failure signature is that of an exception that neither a peer nor the network has caused."""
    return is_raised(failure) and not failure.partition(" at ")[0].endswith(tuple(_ERRORS_OF_PEERS))


def may_have_lost_peer(culprit: Culprit) -> bool:
    """Whether a task ended like TensorFlow, which raises or aborts, or JAX, which exits with 1, without an answer."""
    return (culprit.code, culprit.signal) in ((1, None), (None, _ABORT)) and not is_own_error(culprit.failure)


def _trainers(plan: Plan) -> list[TaskPlan]:
    return [task for task in plan.tasks if in_gang(task) and ends_by_itself(plan, task)]


def stop_grace(plan: Plan, culprit: Culprit) -> float:
    """Return the seconds between TERM and KILL for the tasks that are stopped because of ``culprit``."""
    if has_hung(culprit):
        return _STACKS_GRACE
    if culprit.cause in (Cause.TASK, Cause.NOT_STARTED, Cause.BACKGROUND, Cause.HOST):
        return survivor_grace(plan)
    return plan.timeouts.grace


def has_hung(culprit: Culprit) -> bool:
    """Whether a time limit shows that tasks hang, so their stacks are worth dumping; a deadline does not."""
    return culprit.cause is Cause.TIME and culprit.name != "deadline"


def exit_code(culprit: Culprit, has_started: bool) -> int:
    """Return tflaunch's exit code for a job that ended because of ``culprit``.

    Args:
        culprit: the first cause.
        has_started: whether any task was started.
    """
    if culprit.signal is not None:
        return 128 + culprit.signal
    if culprit.cause is Cause.TIME:
        return EXIT_TIMEOUT
    if culprit.code is None:
        return EXIT_INTERNAL if has_started else EXIT_PREFLIGHT
    # 124 and 125 have a meaning of their own in tflaunch; a program that exits with them has merely failed.
    return 1 if culprit.code in (EXIT_TIMEOUT, EXIT_INTERNAL) else culprit.code
