"""Handle the answers of hosts to what an attempt needs there. Pure."""

from collections.abc import Sequence

from tflaunch.clusterspec.values import Address
from tflaunch.core import events, preflight, spares
from tflaunch.core.job_state import Cause, CopiedCheckpoint, Culprit, Job, Phase
from tflaunch.core.phases import Step, fail
from tflaunch.core.states import CHECKPOINT, CODE, FIRST_NEEDS, NAMES, NETWORK, PEERS, SETUP, HostPhase
from tflaunch.plan import attempts

_MOST_SHOWN = 8
_OTHER_PORT = 'end what has the port, or give the task another one in "cluster"; "HOST" alone has a free one chosen'
_OTHER_NETWORK = 'allow it there, or write "network": "fenced", which keeps other hosts out but not users of this one'
_REFUSED = {
    CODE: (Cause.FILES, "the files of `sync` cannot be brought to {host}: {reason}"),
    CHECKPOINT: (Cause.FILES, "the newest checkpoint cannot be put on {host}: {reason}"),
    SETUP: (Cause.FILES, "`setup` is not possible on {host}: {reason}; correct it, or what it needs there"),
    NETWORK: (Cause.PORTS, f'"network": "private" is not possible on {{host}}: {{reason}}\n{_OTHER_NETWORK}'),
}
_REMEDY = (
    "TensorFlow would wait for them silently; open these ports between the hosts, or give the address"
    " by which the others reach a host as hosts.X.address"
)


def on_prepared(job: Job, event: events.HostPrepared, now: float) -> Step:
    """Return the job after a host has got something that it needs."""
    job = _has_answered(job, event.host, event.what)
    if event.what == CODE:
        job = job.with_host(job.hosts[event.host]._replace(code=event.name))
    return job, []


def on_refused(job: Job, event: events.HostRefused, now: float) -> Step:
    """Return the job after a host could not have something that it needs."""
    cause, message = _REFUSED[event.what]
    message = message.format(host=event.host, reason=event.reason)
    if event.what not in FIRST_NEEDS:  # which the next attempt needs all the same
        job = _has_answered(job, event.host, event.what)
    return _refuse_host(job, cause, event.host, ["\n  ".join([message, *event.lines])], now)


def on_names_resolved(job: Job, event: events.NamesResolved, now: float) -> Step:
    """Return the job after a host has looked up the others' names."""
    job, names = _has_answered(job, event.host, NAMES), event.found
    if not job.hosts[event.host].is_spare:
        job, names = _rule_out_unknown(job, event)
    return _refuse_host(job, Cause.NAMES, event.host, preflight.name_problems(event.host, names), now)


def on_checkpoint_copied(job: Job, event: events.CheckpointCopied, now: float) -> Step:
    """Return the job after a checkpoint was copied."""
    return job._replace(
        checkpoint=CopiedCheckpoint(event.host, event.name, event.step, now, tuple(event.hosts.split()))
    ), []


def _rule_out_unknown(job: Job, event: events.NamesResolved) -> tuple[Job, dict[str, str]]:
    """Rule out spare hosts that a host cannot resolve; return the rest."""
    names = dict(event.found)
    for spare in job.spares_in(*HostPhase):
        name = job.plan.host(spare).outer_address
        if name in names and name not in preflight.names_of(job.plan):
            problems = preflight.name_problems(event.host, {name: names.pop(name)})
            job = spares.rule_out(job, spare, problems[0]) if problems else job
    return job, names


def on_ports_held(job: Job, event: events.PortsHeld, now: float) -> Step:
    """Return the job after a host holds ports for its tasks."""
    if event.addresses:
        job = job.with_host(job.hosts[event.host]._replace(addresses=event.addresses))
    job = job._replace(ports={**job.ports, **event.ports})
    if job.phase is Phase.RUNNING:  # a host has returned with tasks that restart alone, and wait for no other ports
        job = job._replace(plan=attempts.resolve(job.plan, event.ports))
    return job, []


def on_ports_refused(job: Job, event: events.PortsRefused, now: float) -> Step:
    """Return the job after a host could not hold ports."""
    lines = [f"{task}: {reason}" for task, reason in event.refused.items()]
    return _refuse(job, Cause.PORTS, event.host, "\n".join([*lines, _OTHER_PORT]), now)


def _has_answered(job: Job, host: str, what: str) -> Job:
    state = job.hosts[host]
    return job.with_host(state._replace(awaits=state.awaits - {what}))


def on_peers_probed(job: Job, event: events.PeersProbed, now: float) -> Step:
    """Collect what hosts could not reach, and fail the job for it at the end."""
    job = _has_answered(job, event.host, PEERS)
    if job.hosts[event.host].is_spare:
        return _refuse_host(job, Cause.PEERS, event.host, _unreached(job, event), now)
    unreached = job.preflight.unreached + _unreached(job, event)
    job = job._replace(preflight=job.preflight._replace(unreached=unreached))
    if job.hosts.count(PEERS) or not unreached:
        return job, []
    shown = [*unreached[:_MOST_SHOWN]]
    if len(unreached) > _MOST_SHOWN:
        shown.append(f"and {len(unreached) - _MOST_SHOWN} more")
    return _refuse(job, Cause.PEERS, event.host, "\n".join([*shown, _REMEDY]), now)


def _unreached(job: Job, event: events.PeersProbed) -> tuple[str, ...]:
    """Return a sentence for each task that a host could not reach."""
    return tuple(
        f"{event.host} cannot reach {task} at {_place(job, task)}: {reason}" for task, reason in event.failed.items()
    )


def _place(job: Job, task: str) -> str:
    address = job.plan.find(task).address
    return "?" if address is None else str(Address(address.host, job.ports.get(task)))


def _refuse_host(job: Job, cause: Cause, host: str, problems: Sequence[str], now: float) -> Step:
    """Fail the job for what is wrong with a host, or rule out a spare one."""
    if not problems:
        return job, []
    if job.hosts[host].is_spare:
        return spares.rule_out(job, host, problems[0]), []
    return _refuse(job, cause, host, "; ".join(problems), now)


def _refuse(job: Job, cause: Cause, host: str, message: str, now: float) -> Step:
    if job.phase not in (Phase.PREPARING, Phase.RUNNING):
        return job, []  # already ending for another reason
    return fail(job, Culprit(cause, host, job.attempt, message), now, may_retry=job.has_started)
