"""Go on without lost hosts, try them again, and limit the wait for them. Pure.

A host is away from when it was given up until an agent has joined there again. No attempt that it keeps from starting
counts as a restart: only `timeouts.lost_host` limits the wait.
"""

from collections.abc import Collection, Sequence

from tflaunch.core import policy, restart_budget, spares
from tflaunch.core.job_state import Cause, Culprit, Job, Phase
from tflaunch.core.states import HostPhase, HostState
from tflaunch.plan.model import Plan, TaskPlan
from tflaunch_worker.readable import duration_words

_LONGEST_REST = 3600.0  # seconds
_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds between two tries
_PAUSES = 4  # a pause is this part of the time that the host has been away


# ---- whether a job goes on without them


def can_lose(job: Job, task: TaskPlan) -> bool:
    """Whether the job continues after this task has failed for good.

    Not before the cluster has formed: a chief waits without limit for workers that have never connected.
    """
    if policy.in_gang(task) and not job.formation.is_complete:
        return False
    if task.role != "worker" or job.plan.elastic is None or job.plan.strategy != "parameter_server":
        return not task.required
    left = [other.task for other in job.plan.tasks if other.role == "worker" and other.task != task.task]
    return sum(_will_work(job, name) for name in left) >= job.plan.elastic.min_workers


def _will_work(job: Job, name: str) -> bool:
    """Whether a task runs, or will run after its backoff, on a host that is not down."""
    task = job.tasks[name]
    is_there = job.hosts[job.plan.find(name).host].phase not in (HostPhase.DOWN, HostPhase.JOINING)
    return is_there and (task.is_alive or task.resume_at is not None)


def can_do_without(job: Job, hosts: Collection[str]) -> bool:
    """Whether the next attempt can start without these hosts.

    Evaluators and sidecars are never waited for; workers may be missing if the spec allows it.
    """
    hosts = frozenset(job.hosts[host].stands_for for host in hosts)
    tasks = [task for task in job.original.tasks if policy.in_gang(task)]
    lost = [task for task in tasks if task.host in hosts]
    if not job.has_started or any(task.role != "worker" for task in lost):
        return False
    workers_left = sum(task.role == "worker" and task.host not in hosts for task in tasks)
    least = job.plan.elastic.min_workers if job.plan.elastic is not None else workers_left + len(lost)
    return not lost or workers_left >= max(least, 1)


def returned_hosts(job: Job) -> list[str]:
    """Return the hosts that have returned, or spare ones, and could train.

    Only a multi_worker_mirrored gang grows while it runs; a parameter_server job includes them in its next restart.
    """
    if job.plan.strategy != "multi_worker_mirrored":
        return []
    excluded = [job.hosts[host] for host in job.excluded_hosts]
    missing = [host for host in excluded if any(map(policy.in_gang, job.original.on_host(host.stands_for)))]
    back = [host.host for host in missing if host.phase is HostPhase.CONNECTED]
    down = [host for host in missing if host.phase is HostPhase.DOWN]
    return [*back, *spares.ready(job)[: len(down)]]


def grows_at(job: Job) -> float | None:
    """Return when to restart the gang with returned hosts, None for never."""
    is_whole = len(job.plan.tasks) == len(job.original.tasks)
    if job.plan.elastic is None or is_whole or not returned_hosts(job):
        return None
    return job.attempt_started_at + job.plan.elastic.retry


def rest_after(plan: Plan, failures: int, was_reached: bool) -> float:
    """Return the seconds to wait before a lost host is tried again.

    The first loss may be an accident, so the host is retried at once. After repeated losses the wait doubles each
    time: every return costs the others the work since their last checkpoint.
    """
    if plan.elastic is None:
        return plan.restart.backoff[0]
    if failures <= 1:
        return 0.0 if was_reached else plan.elastic.retry
    return restart_budget.doubled_delay(plan.elastic.retry, failures - 2, max(_LONGEST_REST, plan.elastic.retry))


# ---- how long it waits for them


def try_later(job: Job, name: str, now: float) -> Job:
    """Have a host tried again after a pause, which grows with its absence."""
    host = job.hosts[name]
    away = 0.0 if host.away_since is None else now - host.away_since
    pause = min(away / _PAUSES, _LONGEST_PAUSE, job.plan.timeouts.lost_host - away)
    return job.with_host(host._replace(retry_at=now + max(pause, _SHORTEST_PAUSE)))


def limit_of(job: Job, host: HostState) -> float | None:
    """Return until when the job waits for a host, None if that is not away."""
    return None if host.away_since is None else host.away_since + job.plan.timeouts.lost_host


def overdue(job: Job, now: float) -> list[HostState]:
    """Return the hosts that have been away for longer than the job waits."""
    return [host for host in job.away() if (limit := limit_of(job, host)) is not None and now >= limit]


def wait_ends_at(job: Job) -> float | None:
    """Return when the job has waited too long for hosts that it needs."""
    limits = sorted((limit, host.host) for host in job.away() if (limit := limit_of(job, host)) is not None)
    for count, (limit, _) in enumerate(limits, start=1):
        if not can_do_without(job, [host for _, host in limits[:count]]):
            return limit
    return None


def waited_for_until(job: Job, host: HostState) -> float | None:
    """Return until when the job waits for a host, for users; None if it does not."""
    there = [job.tasks[task.task] for task in job.plan.on_host(host.host)]
    is_missed = job.phase is Phase.WAITING_FOR_HOSTS or any(task.resume_at is not None for task in there)
    return limit_of(job, host) if is_missed and policy.waits_for_lost_hosts(job) and not host.is_spare else None


def culprit_of(job: Job, hosts: Sequence[HostState], now: float) -> Culprit:
    """Return the culprit of a job that has waited in vain for these hosts."""
    limit = f"timeouts.lost_host ({duration_words(job.plan.timeouts.lost_host)})"
    remedy = f"not reached again within {limit}; raise it, e.g. --set timeouts.lost_host=1h"
    message = "\n".join([*(f"{host.host}: {host.reason}" for host in hosts), remedy])
    return Culprit(Cause.UNREACHABLE, ", ".join(host.host for host in hosts), job.attempt, message, now)
