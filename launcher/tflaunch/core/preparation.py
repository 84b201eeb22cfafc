"""Handle hosts' answers before an attempt: code copied, names resolved, checkpoint placed, ports held, peers tried.

Pure.
"""

from __future__ import annotations

from collections.abc import Container

from tflaunch.clusterspec.values import Address
from tflaunch.core import checkpoint_placement, preflight, spares
from tflaunch.core.events import (
    CheckpointCopied,
    CheckpointPlaced,
    CheckpointRefused,
    FilesRefused,
    FilesSynced,
    NamesResolved,
    NetworkRefused,
    PeersProbed,
    PortsHeld,
    PortsRefused,
    PreparationEvent,
)
from tflaunch.core.host_state import CHECKPOINT, CODE, NAMES, PEERS, HostPhase
from tflaunch.core.job_state import Cause, Culprit, Job, Phase
from tflaunch.core.phases import Step, fail
from tflaunch.core.task_state import TaskPhase
from tflaunch.plan import attempts

_MOST_SHOWN = 8
_OTHER_PORT = 'end what has the port, or give the task another one in "cluster"; "HOST" alone has a free one chosen'
_OTHER_NETWORK = 'allow it there, or write "network": "fenced", which keeps other hosts out but not users of this one'
_REMEDY = (
    "TensorFlow would wait for them silently; open these ports between the hosts, or give the address"
    " by which the others reach a host as hosts.X.address"
)


def on_preparation(job: Job, event: PreparationEvent, now: float) -> Step:
    """Return the job after a host has done its part for the next attempt, or could not."""
    if isinstance(event, FilesRefused | NamesResolved | PeersProbed) and job.hosts[event.host].is_spare:
        return _on_spare(job, event), []
    match event:
        case FilesSynced() | FilesRefused():
            return _on_files(job, event, now)
        case NamesResolved():
            # A wrongly resolved name would make the tasks wait without limit.
            job = _has_answered(job, event.host, NAMES)
            job, found = _rule_out_unknown(job, event)
            problems = preflight.name_problems(event.host, found)
            return _refuse(job, Cause.NAMES, event.host, "; ".join(problems), now) if problems else (job, [])
        case CheckpointCopied() | CheckpointPlaced() | CheckpointRefused():
            return _on_checkpoint(job, event, now)
        case PortsHeld():
            job = job.with_host(event.host, addresses=event.addresses) if event.addresses else job
            return _on_ports_held(job, event), []
        case PortsRefused():
            return _on_ports_refused(job, event, now)
        case NetworkRefused():
            message = f'"network": "private" is not possible on {event.host}: {event.reason}\n{_OTHER_NETWORK}'
            return _refuse(job, Cause.PORTS, event.host, message, now)
        case PeersProbed():
            return _on_peers_probed(job, event, now)


def _on_files(job: Job, event: FilesSynced | FilesRefused, now: float) -> Step:
    if isinstance(event, FilesSynced):
        return _has_answered(job, event.host, CODE).with_host(event.host, code=event.directory), []
    message = f"the files of `sync` cannot be brought to {event.host}: {event.reason}"
    return _refuse(job, Cause.FILES, event.host, message, now)


def _on_checkpoint(job: Job, event: CheckpointCopied | CheckpointPlaced | CheckpointRefused, now: float) -> Step:
    if isinstance(event, CheckpointCopied):
        return checkpoint_placement.note_copy(job, event, now), []
    job = _has_answered(job, event.host, CHECKPOINT)
    if isinstance(event, CheckpointPlaced):
        return job, []
    message = f"the newest checkpoint cannot be put on {event.host}: {event.reason}"
    return _refuse(job, Cause.FILES, event.host, message, now)


def _on_spare(job: Job, event: FilesRefused | NamesResolved | PeersProbed) -> Job:
    """Return the job after a spare host has answered; a problem there rules out the host and does not fail the job."""
    match event:
        case FilesRefused():
            return spares.rule_out(job, event.host, f"the files of `sync` cannot be brought there: {event.reason}")
        case NamesResolved():
            job, problems = _has_answered(job, event.host, NAMES), preflight.name_problems(event.host, event.found)
        case PeersProbed():
            job = _has_answered(job, event.host, PEERS)
            problems = [*_unreached(job, event)]
    return spares.rule_out(job, event.host, problems[0]) if problems else job


def _rule_out_unknown(job: Job, event: NamesResolved) -> tuple[Job, dict[str, str]]:
    """Rule out the spare hosts whose names a host does not resolve; return what it has found of the others."""
    found = dict(event.found)
    for spare in job.spares_in(*HostPhase):
        name = job.plan.outer_address(spare)
        if name in found and name not in preflight.names_of(job.plan):
            problems = preflight.name_problems(event.host, {name: found.pop(name)})
            job = spares.rule_out(job, spare, problems[0]) if problems else job
    return job, found


def _on_ports_held(job: Job, event: PortsHeld) -> Job:
    own = _own_ports_in(job, event.ports)
    if any(job.tasks[task].is_alive for task in own):
        return job  # a second answer: it has already started on the first port
    job = job._replace(ports={**job.ports, **event.ports})
    # A host has returned with tasks that restart alone, or a sidecar can start; neither waits for the other ports.
    if job.phase is Phase.RUNNING or own:
        job = job._replace(plan=attempts.resolve(job.plan, event.ports))
    return job


def _on_ports_refused(job: Job, event: PortsRefused, now: float) -> Step:
    if own := _own_ports_in(job, event.refused):  # they were requested apart, and no task waits for them
        for task in (job.tasks[name] for name in own):
            job = job if task.is_alive else job.with_task(task, phase=TaskPhase.GONE, resume_at=None)
        return job, []
    lines = [f"{task}: {reason}" for task, reason in event.refused.items()]
    return _refuse(job, Cause.PORTS, event.host, "\n".join([*lines, _OTHER_PORT]), now)


def _has_answered(job: Job, host: str, what: str) -> Job:
    return job.with_host(host, awaits=job.hosts[host].awaits - {what})


def _own_ports_in(job: Job, answered: Container[str]) -> list[str]:
    """Return the sidecars with a port of their own that a host has answered for."""
    return [process.task for process in job.plan.with_own_ports() if process.task in answered]


def _on_peers_probed(job: Job, event: PeersProbed, now: float) -> Step:
    """Collect what a host could not reach; fail the job once all have answered if there is anything."""
    unreached = job.preflight.unreached + _unreached(job, event)
    job = _has_answered(job, event.host, PEERS)._replace(preflight=job.preflight._replace(unreached=unreached))
    if job.hosts.count(PEERS) or not unreached:
        return job, []
    shown = [*unreached[:_MOST_SHOWN]]
    if len(unreached) > _MOST_SHOWN:
        shown.append(f"and {len(unreached) - _MOST_SHOWN} more")
    return _refuse(job, Cause.PEERS, event.host, "\n".join([*shown, _REMEDY]), now)


def _unreached(job: Job, event: PeersProbed) -> tuple[str, ...]:
    """Return a sentence for each task that a host could not reach."""
    return tuple(
        f"{event.host} cannot reach {task} at {_place(job, task)}: {reason}" for task, reason in event.failed.items()
    )


def _place(job: Job, task: str) -> str:
    address = job.plan.find(task).address
    return "?" if address is None else str(Address(address.host, job.ports.get(task)))


def _refuse(job: Job, cause: Cause, host: str, message: str, now: float) -> Step:
    if job.phase not in (Phase.PREPARING, Phase.RUNNING):
        return job, []  # already ending for another reason
    return fail(job, Culprit(cause, host, job.attempt, None, None, message), now, may_retry=job.has_started)
