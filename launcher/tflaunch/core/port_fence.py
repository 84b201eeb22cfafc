"""The fence: from which addresses connections may reach the tasks. Pure."""

from tflaunch.core.actions import Action, UpdateFence
from tflaunch.core.events import OutsiderRefused, PeerSeen, PortUnfenced
from tflaunch.core.job_state import Cause, Culprit, Job, Phase
from tflaunch.core.phases import Step, fail
from tflaunch.core.states import HostPhase
from tflaunch.plan.model import FENCED, FENCED_OR_FAIL, Plan
from tflaunch.plan.tf_config import has_cluster

MOST_SOURCES = 64
"""Maximum of addresses that are kept of those that hosts have seen."""

REMEDY = '"network": "open" lets everybody through'


def is_fenced(plan: Plan) -> bool:
    """Whether the ports of a plan's tasks are to be fenced."""
    return plan.network in (FENCED, FENCED_OR_FAIL) and has_cluster(plan.strategy)


def admitted(job: Job) -> list[str]:
    """Return the addresses of the cluster that its hosts know, sorted."""
    present = [host for host in job.hosts.values() if host.phase not in (HostPhase.DOWN, HostPhase.JOINING)]
    return sorted({address for host in present for address in host.addresses.split()}.union(job.port_fence.seen))


def updates(before: Job, after: Job) -> list[Action]:
    """Return requests to follow a change of the cluster's addresses while tasks run.

    A host also gets the addresses with each task that it starts, if they have changed.
    """
    if before.hosts is after.hosts and before.port_fence is after.port_fence:
        return []
    if after.phase not in (Phase.RUNNING, Phase.SAVING, Phase.DRAINING):
        return []
    if not is_fenced(after.plan) or admitted(before) == admitted(after):
        return []
    busy = {after.plan.find(task.task).host for task in after.alive()}
    present = (HostPhase.CONNECTED, HostPhase.DISCONNECTED)
    return [UpdateFence(host) for host in after.hosts_in(*present) if host in busy]


def on_peer_seen(job: Job, event: PeerSeen, now: float) -> Step:
    """Return the job after another host of the run has come from an address."""
    fence = job.port_fence
    return job._replace(port_fence=fence._replace(seen=_with(fence.seen, event.source))), []


def on_outsider_refused(job: Job, event: OutsiderRefused, now: float) -> Step:
    """Return the job after a connection was refused."""
    fence = job.port_fence
    return job._replace(port_fence=fence._replace(refused=_with(fence.refused, event.source))), []


def on_port_unfenced(job: Job, event: PortUnfenced, now: float) -> Step:
    """Return the job after a task has no fence, which may end it."""
    job = job._replace(port_fence=job.port_fence._replace(flaw=job.port_fence.flaw or flaw_of(event)))
    if job.plan.network != FENCED_OR_FAIL or job.phase is not Phase.RUNNING:
        return job, []
    message = f"{flaw_of(event)}; {REMEDY}"
    return fail(job, Culprit(Cause.PORTS, event.host, job.attempt, message), now, may_retry=False)


def no_way_out_of(host: str, reason: str) -> str:
    """Return a sentence about a private network without a way out."""
    return f"tasks have no way out of the private network of {host}: {reason}"


def flaw_of(event: PortUnfenced) -> str:
    """Return a sentence about a task without a fence."""
    return f"connections from everywhere can reach {event.task} on {event.host}: {event.reason}"


def _with(known: tuple[str, ...], address: str) -> tuple[str, ...]:
    return known if address in known or len(known) >= MOST_SOURCES else (*known, address)
