"""TensorBoard beside a job: when its port is asked for, and whether it stays when the job has ended. Pure."""

from __future__ import annotations

from tflaunch.core.actions import Action, HoldPorts
from tflaunch.core.job_state import HostPhase, Job, TaskPhase, TaskState
from tflaunch.plan import tensorboard
from tflaunch.plan.model import TaskPlan


def may_stay(job: Job, process: TaskPlan) -> bool:
    """Whether a process is not ended with the job: TensorBoard, if the user wants that, and until they want the end."""
    return job.plan.keep and not job.is_unwanted and tensorboard.is_board(process)


def who_stays(job: Job) -> TaskPlan | None:
    """Return what stays when everything else is dead: it lives or will start, and nothing has ended it for good."""
    process = tensorboard.of(job.plan)
    if process is None or not may_stay(job, process) or job.hosts[process.host].phase is HostPhase.AWAY:
        return None
    task = job.tasks[process.task]
    return process if task.is_alive or _will_start(job, task) else None


def _will_start(job: Job, task: TaskState) -> bool:
    return task.resume_at is not None or (task.phase is TaskPhase.IDLE and job.has_started)


def hold_port(job: Job, host: str | None = None) -> list[Action]:
    """Ask for TensorBoard's port if it needs one, and its host, or this one, is there.

    It needs another one for every start: the one before may have been taken by somebody else meanwhile.
    """
    process = tensorboard.of(job.plan)
    if process is None or host not in (None, process.host) or job.hosts[process.host].phase is not HostPhase.JOINED:
        return []
    task = job.tasks[process.task]
    is_waiting = task.phase is TaskPhase.IDLE or (task.phase is TaskPhase.GONE and task.resume_at is not None)
    return [HoldPorts(process.host, {process.task: tensorboard.USUAL_PORT}, exclusive=True)] if is_waiting else []
