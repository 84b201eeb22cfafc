"""Spare hosts: which can take the place of a lost host. Pure.

A host moves as a whole: all its processes start again on the spare host, and the lost host becomes a spare one. Tasks
are moved only when they are certainly dead, that is, when their host is down.
"""

from tflaunch.core import policy, restart_budget
from tflaunch.core.actions import Action, ImportModules
from tflaunch.core.job_state import Job
from tflaunch.core.states import COLD, NAMES, PEERS, SPARE, HostPhase
from tflaunch.plan import attempts
from tflaunch.plan.model import PRIVATE

_SHORTEST_REST, _LONGEST_REST = 1.0, 60.0  # seconds until a spare host is tried again


def ready(job: Job) -> list[str]:
    """Return the spare hosts that can take the place of a lost one at once."""
    if not job.hosts.count((SPARE, HostPhase.CONNECTED)):
        return []
    return [host.host for host in job.hosts.values() if host.can_take_over]


def replace_lost(job: Job, now: float) -> Job:
    """Put spare hosts in the place of those that are down, after the first start."""
    lost = job.hosts_in(HostPhase.DOWN) if job.has_started else []
    for host, spare in zip(lost, ready(job), strict=False):
        job = _swap(job, host, spare, now)
    return job


def move_now(job: Job, host: str, spare: str, now: float) -> Job:
    """Put a spare host in the place of a lost one, while other tasks go on."""
    job = _swap(job, host, spare, now)
    rebuilt = attempts.without(attempts.moved(job.original, job.places), job.excluded_hosts)
    plan = job.plan.with_processes(lambda task: rebuilt.find(task.task) if task.host == host else task)
    return job._replace(plan=plan)


def _swap(job: Job, lost: str, spare: str, now: float) -> Job:
    state = job.hosts[lost]
    retry_at = None if state.flaw else now + rest_after(state.failures)
    job = job.with_host(job.hosts[spare]._replace(stands_for=state.stands_for, retry_at=None))
    return job.with_host(state._replace(stands_for="", retry_at=retry_at, is_warm=False))


def are_checked(job: Job) -> bool:
    """Whether the preflight waits for no spare host."""
    if not job.hosts.count((SPARE, NAMES), (SPARE, PEERS)):
        return True
    awaited = frozenset({NAMES, PEERS})
    spares = [job.hosts[host] for host in job.spares_in(HostPhase.CONNECTED)]
    return not any(host.awaits & awaited for host in spares)


def rule_out(job: Job, host: str, flaw: str) -> Job:
    """Note why a host cannot become a spare one, or be one any longer."""
    state = job.hosts[host]
    return job.with_host(state._replace(flaw=state.flaw or flaw, retry_at=None))


def rest_after(failures: int) -> float:
    """Return the seconds that a spare host rests after failures in a row."""
    return restart_budget.doubled_delay(_SHORTEST_REST, max(failures - 1, 0), _LONGEST_REST)


def warm_up(job: Job) -> tuple[Job, list[Action]]:
    """Have spare hosts import what a worker imports, or else the chief."""
    if not job.plan.preload or job.plan.network == PRIVATE or not job.hosts.count(COLD):
        return job, []
    gang = [task for task in job.original.tasks if policy.in_gang(task)]
    likely = [task.task for task in gang if task.role == "worker"] or [task.task for task in gang]
    actions: list[Action] = []
    for host in ready(job):
        if likely and not job.hosts[host].is_warm:
            job = job.with_host(job.hosts[host]._replace(is_warm=True))
            actions.append(ImportModules(host, likely[0]))
    return job, actions
