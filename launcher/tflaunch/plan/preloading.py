"""Decide, as far as the plan tells, which tasks to fork from a process with preloaded modules. Pure.

The host checks the rest before each start: `tflaunch_worker.forkserver.pool`.
"""

from __future__ import annotations

from tflaunch.plan.model import SIDECAR, Plan, TaskPlan

REFUSED = "no: "
"""Prefix of a task's ``preload``, followed by the reason, if the task is not forked."""


def modules_for(plan: Plan, process: TaskPlan) -> tuple[str, ...]:
    """Return the modules to preload for a process; () for sidecars, which do not train."""
    return () if process.role == SIDECAR else plan.preload


def prospect(plan: Plan, process: TaskPlan) -> str | None:
    """Return the modules, or ``no: `` and the reason in the command; None if preload is not requested."""
    modules = modules_for(plan, process)
    if not modules:
        return None
    reason = reason_against(process.argv)
    return f"{REFUSED}{reason}" if reason else ",".join(modules)


def reason_against(argv: tuple[str, ...]) -> str:
    """Return why a command cannot be forked; "" if it can."""
    from tflaunch_worker.forkserver import program_source  # slow to import, and few plans need it

    return program_source.check_command(list(argv))
