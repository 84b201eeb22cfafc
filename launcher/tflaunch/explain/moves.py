"""Say which tasks have moved to spare hosts, and which spare hosts are left. Pure."""

from __future__ import annotations

from tflaunch.core import spares
from tflaunch.core.host_state import HostPhase, HostState
from tflaunch.core.job_state import Job
from tflaunch.explain.wording import counted, listed


def moved_tasks(job: Job) -> list[str]:
    """Return a sentence for each host in whose place another one is."""
    tasks: dict[str, list[str]] = {}
    for process in job.plan.processes():
        tasks.setdefault(process.host, []).append(process.task)
    return [f"{listed(tasks[host])} moved from {home} to {host}" for home, host in job.places.items() if host in tasks]


def spares_left(job: Job) -> str:
    """Return how many spare hosts can take the place of a lost one."""
    left = spares.ready(job)
    return f"{counted(len(left), 'spare host')} left" + (f" ({listed(left)})" if left else "")


def news(before: Job, after: Job) -> list[str]:
    """Return messages about spare hosts and moves in one step of the supervisor."""
    if before.hosts is after.hosts or not after.original.spares:
        return []
    changed = [(before.hosts[name], host) for name, host in after.hosts.items() if host is not before.hosts[name]]
    lines = [line for was, host in changed if (line := _of_host(was, host))]
    taken = [host for was, host in changed if was.is_spare and not host.is_spare]
    lines += [_of_move(before, after, host) for host in taken]
    return lines


def _of_move(before: Job, after: Job, host: HostState) -> str:
    lost = next(name for name, was in before.hosts.items() if was.stands_for == host.stands_for)
    tasks = [process.task for process in after.process_plans() if process.host == host.host]
    verb = "moves" if len(tasks) == 1 else "move"
    why = "" if before.hosts[lost].phase is HostPhase.DOWN else f"host {lost} was lost: {after.hosts[lost].reason}; "
    return f"{why}{listed(tasks)} {verb} from {lost} to {host.host}; {spares_left(after)}"


def _of_host(was: HostState, host: HostState) -> str:
    """Return a message about a spare host, "" for nothing new."""
    if not host.is_spare:
        return ""
    name = host.host
    if host.flaw and not was.flaw:
        return f"warning: {name} is not used as a spare host: {host.flaw}"
    if not was.is_spare or was.phase is host.phase:
        return ""
    if host.phase is HostPhase.CONNECTED and was.phase is HostPhase.JOINING and (was.reason or was.failures):
        return f"{name} is a spare host now"
    if host.phase is HostPhase.DOWN and was.phase is not HostPhase.JOINING:
        return f"the spare host {name} was lost: {host.reason}; the job goes on"
    if host.phase is HostPhase.DOWN and was.reason != host.reason:
        return f"warning: the spare host {name} is not there: {host.reason}; it is tried again"
    return ""
