"""The fence: from which addresses connections may reach the tasks, and what hosts report about it. Pure."""

from __future__ import annotations

from collections.abc import Collection

from tflaunch.core.actions import Action, UpdateFence
from tflaunch.core.events import OutsiderRefused, PeerSeen, PortUnfenced
from tflaunch.core.job_state import Cause, Culprit, HostPhase, Job, Phase
from tflaunch.core.phases import Step, fail
from tflaunch.plan.model import FENCED, FENCED_OR_FAIL, Plan, TaskPlan, is_relayed
from tflaunch.plan.tf_config import has_cluster

MOST_SOURCES = 256
"""Maximum of addresses that are kept of those that hosts have seen."""

REMEDY = '"network": "open" lets everybody through'


def is_fenced(plan: Plan) -> bool:
    """Whether the ports of a plan's tasks are to be fenced."""
    return plan.network in (FENCED, FENCED_OR_FAIL) and has_cluster(plan.strategy)


def admitted(job: Job) -> list[str]:
    """Return the addresses of the cluster, sorted; [] if a host does not know its own."""
    present = [host for host in job.hosts.values() if host.phase not in (HostPhase.DOWN, HostPhase.JOINING)]
    if not all(host.addresses for host in present):
        return []
    return sorted({address for host in present for address in host.addresses.split()}.union(job.port_fence.seen))


def network_of(job: Job) -> dict[str, object]:
    """Return the order that joins the private networks; each host also needs its part (`own_network_of`).

    The fields are those of `tflaunch_worker.agent.relay_frames.Network`. Lost hosts, which have no ports, are left out.
    """
    relays = {name: task for name, task in job.plan.relay_tasks.items() if task.task in job.ports}
    inside = [task for task in job.plan.tasks if task.host in relays and task.task in job.ports]
    return {
        "run": job.run,
        "attempt": job.attempt,
        "heartbeat": job.plan.timeouts.heartbeat,
        "hosts": {
            _host_of(task): (job.plan.outer_address(name), job.ports[task.task]) for name, task in relays.items()
        },
        "tasks": {task.task: (_host_of(task), job.ports[task.task]) for task in inside},
    }


def own_network_of(job: Job, host: str) -> dict[str, str]:
    """Return the part of one host with tasks: its virtual address, and the task on whose port its relay listens."""
    task = job.plan.relay_tasks[host]
    return {"own": _host_of(task), "port_of": task.task}


def _host_of(task: TaskPlan) -> str:
    return "" if task.address is None else task.address.host


def updates(before: Job, after: Job) -> list[Action]:
    """Return requests to follow a change of the cluster's addresses while tasks run.

    A host also gets the addresses with each task that it starts, if they have changed.
    """
    if before.hosts is after.hosts and before.port_fence is after.port_fence and before.ports is after.ports:
        return []
    if after.phase not in (Phase.RUNNING, Phase.SAVING, Phase.DRAINING):
        return []
    if is_relayed(after.plan):
        concerned = _to_join(before, after)
    elif is_fenced(after.plan) and admitted(before) != admitted(after):
        concerned = frozenset(after.hosts)
    else:
        return []
    busy = {after.plan.find(task.task).host for task in after.alive()}.intersection(concerned)
    present = (HostPhase.CONNECTED, HostPhase.DISCONNECTED)
    return [UpdateFence(host) for host in after.hosts_in(*present) if host in busy]


def _to_join(before: Job, after: Job) -> Collection[str]:
    """Return the hosts that need the order that joins private networks: all after a change, and reconnected ones.

    A supervisor that has taken over in between has other keys.
    """
    if before.phase is after.phase and dict(before.ports) != dict(after.ports):
        return frozenset(after.hosts)
    return {
        host.host
        for host in after.hosts.values()
        if host.phase is HostPhase.CONNECTED and before.hosts[host.host].phase is HostPhase.DISCONNECTED
    }


def on_fence_event(job: Job, event: PeerSeen | OutsiderRefused | PortUnfenced, now: float) -> Step:
    """Return the job after a host has reported something about its fence."""
    fence = job.port_fence
    match event:
        case PeerSeen():
            return job._replace(port_fence=fence._replace(seen=_with(fence.seen, event.source))), []
        case OutsiderRefused():
            return job._replace(port_fence=fence._replace(refused=_with(fence.refused, event.source))), []
        case PortUnfenced():
            job = job._replace(port_fence=fence._replace(flaw=fence.flaw or flaw_of(event)))
            if job.plan.network != FENCED_OR_FAIL or job.phase is not Phase.RUNNING:
                return job, []
            message = f"{flaw_of(event)}; {REMEDY}"
            return fail(job, Culprit(Cause.PORTS, event.host, job.attempt, None, None, message), now, may_retry=False)


def flaw_of(event: PortUnfenced) -> str:
    """Return what is wrong with the fence of a task, as users read it."""
    return f"connections from everywhere can reach {event.task} on {event.host}: {event.reason}"


def _with(known: tuple[str, ...], address: str) -> tuple[str, ...]:
    return known if address in known or len(known) >= MOST_SOURCES else (*known, address)
