"""What a live run waits for, until when, and what follows. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from tflaunch.core import lost_hosts, policy
from tflaunch.core.host_state import HostPhase
from tflaunch.core.job_state import Job, Phase
from tflaunch.errors import EXIT_INTERNAL
from tflaunch.explain.wording import listed

_MOST = 8
_END = f"then the run ends with exit code {EXIT_INTERNAL}"


class Wait(NamedTuple):
    """A wait of a run until a time: ``then`` follows, ``again`` is the next try.

    ``what`` begins a sentence.
    """

    what: str
    until: float
    then: str
    again: float | None = None


def waits_of(job: Job, epoch: float) -> list[Wait]:
    """List a job's waits; its times plus ``epoch`` are seconds since the epoch."""

    def since_epoch(time: float | None) -> float | None:
        return None if time is None else round(time + epoch, 3)

    found = islice(_waits(job), _MOST)
    return [wait._replace(until=round(wait.until + epoch, 3), again=since_epoch(wait.again)) for wait in found]


def _waits(job: Job) -> Iterator[Wait]:
    if job.exit_code is not None:
        return
    yield from _waits_for_hosts(job)
    if job.phase is Phase.BACKING_OFF and job.deadlines.resume_at is not None:
        number = job.attempt + 1
        yield Wait(f"The backoff before attempt {number}", job.deadlines.resume_at, f"then attempt {number} starts")
    for process in policy.waiting(job) if job.phase is Phase.RUNNING else ():
        resume_at = job.tasks[process.task].resume_at
        if resume_at is not None and policy.is_ready(job, process):
            yield Wait(f"The backoff of {process.task}", resume_at, f"then {process.task} starts again")


def _waits_for_hosts(job: Job) -> Iterator[Wait]:
    ends_at = lost_hosts.wait_ends_at(job)
    for host in job.hosts.values():
        reason = f": {host.reason}" if host.reason else ""
        if host.phase is HostPhase.DISCONNECTED and host.fence_at is not None:
            yield Wait(f"{host.host} is silent{reason}", host.fence_at, "then its tasks count as dead")
        elif (until := lost_hosts.waited_for_until(job, host)) is not None:
            then = _END if ends_at is not None and until >= ends_at else "then the run goes on without it"
            yield Wait(f"{host.host} is lost{reason}", until, then, host.retry_at)
    joining = job.hosts_in(HostPhase.JOINING) if job.phase is Phase.JOINING else []
    if joining:
        reasons = "; ".join(dict.fromkeys(filter(None, (job.hosts[host].reason for host in joining))))
        what = f"{listed(joining)} must answer" + (f" ({reasons})" if reasons else "")
        yield Wait(what, job.join_by, "then those that do not count as unreachable")
