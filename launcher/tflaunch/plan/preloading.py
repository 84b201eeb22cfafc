"""Decide, as far as the plan tells, which tasks to fork from a process with preloaded modules. Pure.

The host checks the rest before each start: `tflaunch_worker.forkserver.pool`.
"""

from __future__ import annotations

import hashlib
import json

from tflaunch.plan.model import SIDECAR, Plan, TaskPlan

REFUSED = "no: "
"""Prefix of a task's ``preload``, followed by the reason, if the task is not forked."""
_OWN_PREFIX = "TFLAUNCH_"


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


def warm_recipe(plan: Plan, host: str) -> str | None:
    """Return the recipe of the tasks on a host for which a warm server is used and kept; None for no tasks.

    A recipe is a hash of everything in the plan that decides what a task's process imports beforehand, and how. If the
    tasks of a host differ in that, its first one decides.
    """
    if plan.warm is None or not plan.is_warm_host(host):
        return None
    return next((recipe for process in plan.on_host(host) if (recipe := _recipe(plan, process))), None)


def warm_order(plan: Plan, process: TaskPlan) -> dict[str, object] | None:
    """Return how the process that imports a task's modules outlives the run; None if it does not."""
    recipe = warm_recipe(plan, process.host)
    return {"recipe": recipe, "idle": plan.warm} if recipe is not None and recipe == _recipe(plan, process) else None


def _recipe(plan: Plan, process: TaskPlan) -> str | None:
    modules = modules_for(plan, process)
    if not modules or reason_against(process.argv):
        return None
    env = {name: value for name, value in process.env.items() if not name.startswith(_OWN_PREFIX)}
    inherits = plan.inherits_environment(process.host)
    known = [process.argv[0], modules, sorted(env.items()), sorted(process.unset), inherits]
    return hashlib.sha256(json.dumps(known).encode("ascii")).hexdigest()
