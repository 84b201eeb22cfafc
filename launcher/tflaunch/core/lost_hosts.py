"""Lost hosts: when they are tried again, and how long a job waits. Pure.

A host is away from when it was given up until an agent has joined there again. No attempt that it keeps from starting
counts as a restart: only `timeouts.lost_host` limits the wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from tflaunch.core import elastic, policy
from tflaunch.core.host_state import HostState
from tflaunch.core.job_state import Cause, Culprit, Job, Phase
from tflaunch_worker.readable import duration_words

_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds between two tries
_PAUSES = 4  # a pause is this part of the time that the host has been away


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
        if not elastic.can_do_without(job, [host for _, host in limits[:count]]):
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
