"""Decide, as far as the plan tells, which tasks to fork from a process with preloaded modules. Pure.

The host checks the rest before each start: `tflaunch_worker.forkserver.pool`.
"""

from __future__ import annotations

import json

from tflaunch.plan.model import PRIVATE, SIDECAR, Plan, TaskPlan

REFUSED = "no: "
"""Prefix of a task's ``preload``, followed by the reason, if the task is not forked."""
_OWN_PREFIX = "TFLAUNCH_"


def modules_for(plan: Plan, process: TaskPlan) -> tuple[str, ...]:
    """Return the modules to preload for a process.

    () for sidecars, which do not train, and in a private network: a fork that joins its user namespace would keep
    privileges there that only the execution of a program takes away.
    """
    return () if process.role == SIDECAR or plan.network == PRIVATE else plan.preload


def search_path(plan: Plan, process: TaskPlan) -> tuple[str, ...] | None:
    """Return the directories in which a process' function also searches modules, None if it does not call one."""
    if plan.function is None or process.role == SIDECAR:
        return None
    return plan.searched if plan.is_like_here(process.host) else ()


def prospect(plan: Plan, process: TaskPlan) -> str | None:
    """Return the modules, or ``no: `` and the reason in the command; None if preload is not requested."""
    modules = modules_for(plan, process)
    if not modules:
        return None
    reason = reason_against(process.argv)
    return f"{REFUSED}{reason}" if reason else ",".join(modules)


def reason_against(argv: tuple[str, ...]) -> str:
    """Return why a command cannot be forked; "" if it can."""
    from tflaunch_worker import program_source  # slow to import, and few plans need it

    return program_source.check_command(list(argv))


def warm_recipe(plan: Plan, host: str) -> str | None:
    """Return the recipe of the tasks on a host for which a warm server is used and kept; None for no tasks.

    A recipe is a hash of everything in the plan that decides what a task's process imports beforehand, and how,
    followed by ``=NAME`` for each variable with a secret. If the tasks of a host differ in that, its first one decides.
    """
    if plan.warm is None or not plan.is_warm_host(host):
        return None
    return next((recipe for process in plan.on_host(host) if (recipe := _recipe(plan, process))), None)


def warm_order(plan: Plan, process: TaskPlan) -> dict[str, object] | None:
    """Return how the process that imports a task's modules outlives the run; None if it does not."""
    recipe = warm_recipe(plan, process.host)
    return {"recipe": recipe, "idle": plan.warm} if recipe is not None and recipe == _recipe(plan, process) else None


def only_importing(plan: Plan) -> Plan:
    """Return a plan that leaves the warm servers for another one: on each host one task, which ends at once."""
    first = [
        next((process for process in plan.on_host(host.host) if _recipe(plan, process)), None)
        for host in plan.hosts
        if plan.is_warm_host(host.host)
    ]
    chosen = [process for process in first if process is not None]
    tasks = tuple(
        process._replace(task=f"worker:{index}", argv=_doing_nothing(process.argv))
        for index, process in enumerate(chosen)
    )
    hosts = tuple(host for host in plan.hosts if any(task.host == host.host for task in tasks))
    return plan._replace(
        strategy="none",
        success="all",
        tasks=tasks,
        sidecars=(),
        hosts=hosts,
        restart=plan.restart._replace(max=0),
        elastic=None,
        spares=(),
        variants=(),
        preflight=False,
        collect=(),
        notify=None,
        checkpoints=None,
    )


def _doing_nothing(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command with the interpreter of another one that does nothing."""
    return (argv[0], *(["-u"] if argv[1:2] == ("-u",) else []), "-c", "pass")


def _recipe(plan: Plan, process: TaskPlan) -> str | None:
    modules = modules_for(plan, process)
    if not modules or reason_against(process.argv):
        return None
    env = {name: value for name, value in process.env.items() if not name.startswith(_OWN_PREFIX)}
    inherits = plan.inherits_environment(process.host)
    search = [place for place in search_path(plan, process) or () if place != process.workdir]
    known = [process.argv[0], modules, search, sorted(env.items()), sorted(process.unset), inherits]
    sources = {source.env for source in plan.secrets.values() if source.env is not None}
    names = sorted({*plan.secrets, *sources})
    import hashlib  # it loads OpenSSL, and most plans use no warm servers

    return "=".join([hashlib.sha256(json.dumps(known).encode("ascii")).hexdigest(), *names])
