"""Request the port for a job's TensorBoard. Pure."""

from __future__ import annotations

from tflaunch.core.actions import Action, HoldPorts
from tflaunch.core.job_state import HostPhase, Job, TaskPhase
from tflaunch.plan import tensorboard


def hold_port(job: Job, host: str | None = None) -> list[Action]:
    """Return a request for a port if TensorBoard waits for one and its host is connected; else [].

    Every start needs a new port: another program may have taken the previous one. With ``host``, only that host's.
    """
    process = tensorboard.tensorboard_of(job.plan)
    if process is None or host not in (None, process.host) or job.hosts[process.host].phase is not HostPhase.CONNECTED:
        return []
    task = job.tasks[process.task]
    is_waiting = task.phase is TaskPhase.IDLE or (task.phase is TaskPhase.GONE and task.resume_at is not None)
    return [HoldPorts(process.host, {process.task: tensorboard.USUAL_PORT}, exclusive=True)] if is_waiting else []
