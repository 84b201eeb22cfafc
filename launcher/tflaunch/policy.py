"""The rules: when a job is done, who restarts with whom, how often, and what its exit code is.

They come from what TensorFlow does. A MultiWorkerMirrored task can never rejoin its cluster, so the
gang restarts together. Worker and ps of a parameter_server job wait for ever, so the chief's end is
the job's; a lost worker is replaced at its address, a lost ps or chief takes the others with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tflaunch.errors import EXIT_INTERNAL, EXIT_PREFLIGHT, EXIT_TIMEOUT
from tflaunch.plan import SIDECAR, Plan, TaskPlan
from tflaunch.spec import Restart
from tflaunch.states import Cause, Culprit, Job
from tflaunch.tf_config import members

WARN_AFTER = 60.0
"""Seconds after which the tasks that the others wait for are named."""

_JOIN_SLACK = 5.0  # beyond timeouts.connect, so that each host can say itself why it was not reached
_FENCE_MARGIN = 5.0  # seconds for a KILL to be done, and for words that were on their way
_SURVIVOR_GRACE = 0.25
_PLAIN_CODES = range(1, 124)


def deciders(plan: Plan) -> tuple[str, ...]:
    """Return the tasks that must end with exit code 0 for the job to have succeeded."""
    decisive = [task.task for task in plan.tasks if fails_job(task)]
    if plan.success == "chief":
        leader = "chief:0" if "chief:0" in decisive else "worker:0"
        return (leader,) if leader in decisive else tuple(decisive)
    return tuple(decisive) or tuple(task.task for task in plan.tasks)


def forms_cluster(plan: Plan) -> bool:
    """Whether the tasks wait for each other at the start: only then can a cluster be said to have formed."""
    return plan.strategy in ("multi_worker_mirrored", "parameter_server")


def unopened(job: Job) -> list[str]:
    """Return the tasks that the others wait for: nobody listens on their ports yet."""
    if not forms_cluster(job.plan):
        return []
    inside = members(job.plan.strategy)
    return [task.task for task in job.plan.tasks if task.role in inside and not job.tasks[task.task].is_port_open]


def has_succeeded(job: Job) -> bool:
    """Whether the job is done by its rule."""
    return all(job.tasks[name].has_succeeded for name in job.deciders)


def fails_job(task: TaskPlan) -> bool:
    """Whether the task's failure is the job's: not for evaluators and sidecars."""
    return task.role not in (SIDECAR, "evaluator")


def restarts_alone(plan: Plan, task: TaskPlan) -> bool:
    """Whether a new attempt of this task can join the others while they run on.

    A ParameterServerStrategy chief waits for a lost worker and takes it back at the same address.
    """
    return not fails_job(task) or (plan.strategy == "parameter_server" and task.role == "worker")


def ends_by_itself(plan: Plan, task: TaskPlan) -> bool:
    """Whether the task's program ever ends; TensorFlow's servers and sidecars do not."""
    is_server = plan.strategy == "parameter_server" and task.role in ("worker", "ps")
    return task.role != SIDECAR and not is_server


def survivor_grace(plan: Plan) -> float:
    """Return the seconds between TERM and KILL for the others after a failure.

    TensorFlow catches TERM in a MultiWorkerMirrored task and goes on; without the failed peer it can
    neither train nor save together, so waiting longer gains nothing.
    """
    grace = plan.timeouts.grace
    return min(grace, _SURVIVOR_GRACE) if plan.strategy == "multi_worker_mirrored" else grace


def join_limit(plan: Plan, now: float) -> float:
    """Return the time until which another agent must have answered, if the last news of one is of ``now``."""
    return now + plan.timeouts.connect + _JOIN_SLACK


def fence(plan: Plan) -> float:
    """Return the seconds after which tasks of a host that cannot be heard are certainly dead.

    Its agent ends them by itself: at the end of the lease with TERM, and after the grace with KILL.
    """
    return plan.lease + plan.timeouts.grace + _FENCE_MARGIN


def lacks_code(job: Job) -> list[str]:
    """Return the hosts to which the user's code has yet to be brought."""
    if job.plan.sync is None:
        return []
    return [host.host for host in job.plan.hosts if not host.is_local and not job.hosts[host.host].has_code]


def names_to_find(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return, for each host, the names by which its tasks look for tasks on others; addresses need no look."""
    if not forms_cluster(plan):
        return {}
    inside = [task for task in plan.tasks if task.address is not None and task.role in members(plan.strategy)]
    wanted = {}
    for host in dict.fromkeys(task.host for task in plan.tasks):
        others = {task.address.host for task in inside if task.address is not None and task.host != host}
        names = tuple(sorted(name for name in others if not _is_number(name)))
        if names:
            wanted[host] = names
    return wanted


def _is_number(name: str) -> bool:
    return name.replace(".", "").isdigit()


def name_problems(host: str, found: Mapping[str, str]) -> list[str]:
    """Return a sentence for each name that leads a task on ``host`` to nobody, or back to its own host."""
    problems = []
    for name, addresses in found.items():
        loopback = [address for address in addresses.split() if address.startswith("127.") or address == "::1"]
        if not addresses:
            problems.append(f"{host} does not know the name {name!r}")
        elif loopback:
            problems.append(f"on {host} the name {name!r} means {loopback[0]}, which is {host} itself")
    return problems


def is_start_failure(job: Job, code: int | None) -> bool:
    """Whether an exit is a plain error of the program before the cluster had ever formed.

    An import that fails or a wrong argument will fail again in the same way.
    """
    return code in _PLAIN_CODES and not job.has_formed


def next_wait(restart: Restart, earlier: Sequence[float], now: float) -> float | None:
    """Return the seconds to wait before another attempt, None when the budget is spent.

    Args:
        restart: the budget: so many restarts within the window.
        earlier: when attempts were restarted before, in seconds.
        now: the time, on the same clock.
    """
    recent = [moment for moment in earlier if now - moment < restart.window]
    if len(recent) >= restart.max:
        return None
    first, longest = restart.backoff
    return min(first * 2.0 ** len(recent), longest)


def exit_code(culprit: Culprit, has_started: bool) -> int:
    """Return tflaunch's exit code for a job that ended because of ``culprit``.

    Args:
        culprit: the first cause.
        has_started: whether any task had been started.
    """
    if culprit.signal is not None:
        return 128 + culprit.signal
    if culprit.cause is Cause.TIME:
        return EXIT_TIMEOUT
    if culprit.code is None:
        return EXIT_INTERNAL if has_started else EXIT_PREFLIGHT
    # 124 and 125 are tflaunch's own words: a program that uses them has failed, no more.
    return 1 if culprit.code in (EXIT_TIMEOUT, EXIT_INTERNAL) else culprit.code
