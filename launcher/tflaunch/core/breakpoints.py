"""Tasks that wait at a `breakpoint()`: the others wait for them, and this is not a hang. Pure.

While a task waits for a debugger, the limits that mean that something hangs (``stall``, ``start``, ``finish``) do not
end the job; afterwards they start again in full.
"""

from __future__ import annotations

from tflaunch.core import policy
from tflaunch.core.job_state import Job, Phase
from tflaunch.core.task_state import AT_BREAKPOINT


def is_debugged(job: Job) -> bool:
    """Whether a task waits at a breakpoint."""
    return job.tasks.count(AT_BREAKPOINT) > 0


def restart_limits(before: Job, job: Job, now: float) -> Job:
    """Return the job with its limits started again, if the last task that waited at a breakpoint has left it."""
    if not is_debugged(before) or is_debugged(job):
        return job
    finish, finish_by = job.plan.timeouts.finish, job.deadlines.finish_by
    if job.phase is Phase.RUNNING and finish is not None and finish_by is not None:
        finish_by = max(finish_by, now + finish)
    return job.with_deadlines(left_breakpoint_at=now, finish_by=finish_by)


def start_of_limits(job: Job) -> float:
    """Return the time from which the limits of the start count in this attempt."""
    return max(job.attempt_started_at, job.deadlines.left_breakpoint_at or 0.0)


def stalls_at(job: Job) -> float | None:
    """Return when a job whose tasks are all silent counts as stalled; None if they are not, or one is debugged."""
    limit = job.plan.timeouts.stall
    if limit is None or is_debugged(job) or not policy.is_stalled(job):
        return None
    left_at = job.deadlines.left_breakpoint_at
    return job.attempt_started_at if left_at is None else left_at + limit
