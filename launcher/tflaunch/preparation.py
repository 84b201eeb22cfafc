"""What hosts answer before an attempt starts: the user's code is there, names lead somewhere, ports are held.

Pure, like everything on this floor.
"""

from __future__ import annotations

from tflaunch import plan as planning
from tflaunch import policy
from tflaunch.events import FilesPlaced, FilesRefused, NamesFound, PortsHeld, PortsRefused
from tflaunch.phases import Step, fail
from tflaunch.states import Cause, Culprit, Job, Phase


def on_preparation(
    job: Job, event: FilesPlaced | FilesRefused | NamesFound | PortsHeld | PortsRefused, now: float
) -> Step:
    """A host has done its part for the next attempt, or cannot."""
    match event:
        case FilesPlaced():
            return job.with_host(event.host, has_code=True), []
        case FilesRefused():
            message = f"the files of `sync` cannot be brought to {event.host}: {event.reason}"
            return _refuse(job, Cause.FILES, event.host, message, now)
        case NamesFound():
            # A name that misleads would let the tasks wait for ever.
            job = job._replace(unknown_names=job.unknown_names - {event.host})
            problems = policy.name_problems(event.host, event.found)
            return _refuse(job, Cause.NAMES, event.host, "; ".join(problems), now) if problems else (job, [])
        case PortsHeld():
            job = job._replace(ports={**job.ports, **event.ports})
            if job.phase is Phase.RUNNING:  # a host is back, with tasks that start alone
                job = job._replace(plan=planning.resolve(job.plan, event.ports))
            return job, []
        case PortsRefused():
            message = "; ".join(f"{task}: {reason}" for task, reason in event.refused.items())
            return _refuse(job, Cause.PORTS, event.host, message, now)


def _refuse(job: Job, cause: Cause, host: str, message: str, now: float) -> Step:
    if job.phase not in (Phase.PREPARING, Phase.RUNNING):
        return job, []  # it is ending for another reason
    return fail(job, Culprit(cause, host, job.attempt, None, None, message), now, may_retry=job.has_started)
