"""Which tasks are forked of a process that has imported modules (`preload`), as far as that is known beforehand. Pure.

The rest is found out on the host, before each start: `tflaunch_worker.forkserver.pool`.
"""

from __future__ import annotations

from tflaunch.plan.model import SIDECAR, Plan, TaskPlan

REFUSED = "no: "
"""What a task's ``preload`` begins with when it is started in the ordinary way; the reason follows."""


def modules_for(plan: Plan, process: TaskPlan) -> tuple[str, ...]:
    """Return the modules that are to be imported for a process: sidecars are no part of the training."""
    return () if process.role == SIDECAR else plan.preload


def prospect(plan: Plan, process: TaskPlan) -> str | None:
    """Return the modules, or ``no: `` and the reason, as far as the command tells; None where nobody asked."""
    modules = modules_for(plan, process)
    if not modules:
        return None
    reason = reason_against(process.argv)
    return f"{REFUSED}{reason}" if reason else ",".join(modules)


def reason_against(argv: tuple[str, ...]) -> str:
    """Say why a command cannot be forked; "" for no reason."""
    from tflaunch_worker.forkserver import program_source  # slow to import, and needed for few plans

    return program_source.check_command(list(argv))
