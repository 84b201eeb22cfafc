"""Which hosts need the newest checkpoint before an attempt, and where its tasks read it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tflaunch.clusterspec import templates
from tflaunch.core.actions import PlaceCheckpoint
from tflaunch.core.events import CheckpointCopied
from tflaunch.core.host_state import CHECKPOINT
from tflaunch.core.job_state import CopiedCheckpoint, Job
from tflaunch.core.policy import in_gang
from tflaunch.plan import placeholders
from tflaunch.plan.model import TaskPlan


def request_checkpoints(job: Job, tasks: Iterable[TaskPlan]) -> tuple[Job, list[PlaceCheckpoint]]:
    """Have the newest checkpoint put on the hosts on which these tasks of the gang start."""
    if job.plan.checkpoints is None:
        return job, []
    hosts = dict.fromkeys(task.host for task in tasks if in_gang(task))
    awaiting = {host: job.hosts[host]._replace(awaits=job.hosts[host].awaits | {CHECKPOINT}) for host in hosts}
    return job._replace(hosts=job.hosts.replaced(awaiting)), [PlaceCheckpoint(host) for host in hosts]


def writer(job: Job) -> TaskPlan | None:
    """Return the task that writes the checkpoints of a job: its chief, or else its first worker."""
    return next((task for task in job.plan.tasks if task.role in ("chief", "worker")), None)


def workdirs_on(job: Job, host: str) -> list[str]:
    """Return the working directories of the gang's tasks on a host."""
    tasks = [task for task in job.plan.tasks if in_gang(task) and task.host == host]
    return list(dict.fromkeys(workdir_of(job, task) for task in tasks))


def workdir_of(job: Job, task: TaskPlan) -> str:
    """Return the working directory of a task in the current attempt."""
    return placeholders.fill(task, job.plan, job.run, str(job.attempt)).workdir


def directory_of(job: Job) -> str:
    """Return the directory of checkpoints, absolute or relative to the working directories."""
    assert job.plan.checkpoints is not None
    return placeholders.filled(job.plan.checkpoints.dir, {templates.RUN: job.run})


def note_copy(job: Job, event: CheckpointCopied, now: float) -> Job:
    """Return the job after a checkpoint was copied; its writer is asked for the newest one before an attempt."""
    return job._replace(
        checkpoint=CopiedCheckpoint(event.host, event.name, event.step, now, tuple(event.hosts.split()))
    )
