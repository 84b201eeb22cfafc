"""What a running task lacks, as its measurements show: it is late in collectives, or its memory grows. Pure.

No decision depends on it; it is kept for people.
"""

from __future__ import annotations

from tflaunch.core.events import MemoryGrew, TaskCaughtUp, TaskFellBehind
from tflaunch.core.job_state import Growth, Job, Late, TaskState

ShortcomingEvent = TaskFellBehind | TaskCaughtUp | MemoryGrew


def note(job: Job, event: ShortcomingEvent, now: float) -> Job:
    """Return the job with a task that is late or has caught up, or whose memory grows or no longer does."""
    task = job.tasks.get(event.task)
    if task is None or task.attempt != event.attempt or not task.is_alive:
        return job  # it has ended in the meantime
    match event:
        case TaskFellBehind(share=share, reason=reason):
            return job.with_task(task, late=Late(share, reason))
        case TaskCaughtUp():
            return job.with_task(task, late=None)
        case MemoryGrew(rate=rate, left=left):
            return job.with_task(task, growth=Growth(rate, now, now + left) if rate else None)


def late_task(job: Job) -> TaskState | None:
    """Return the running task for which the others wait, None if there is none."""
    return next((task for task in job.tasks.values() if task.late is not None and task.pid and task.is_alive), None)
