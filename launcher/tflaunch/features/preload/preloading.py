"""The choice of tasks to fork from a preloaded process, from the plan alone. Pure.

The host checks the rest before each start: `tflaunch_worker.features.preload.pool`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType

from tflaunch.clusterspec.model import Spec
from tflaunch.errors import Problem
from tflaunch.features.preload.between_tests import BetweenTests
from tflaunch.plan import placeholders
from tflaunch.plan.model import AUTO, PRIVATE, SIDECAR, HostPlan, Plan, TaskPlan
from tflaunch.plan.task_starter import REFUSED, SessionPart, TaskStarter
from tflaunch_worker import tf_config
from tflaunch_worker.features import program_source
from tflaunch_worker.features.preload.source_checks import READ_WITH_DEVICES

_OWN_PREFIX = "TFLAUNCH_"


def find_problems(spec: Spec, directory: Path) -> Iterator[Problem]:
    """Yield names that are not those of modules, and why tasks are not forked."""
    is_chosen = spec.preload not in ((), (AUTO,))
    if not (is_chosen or spec.warm):
        return
    for index, module in enumerate(spec.preload):
        if not all(part.isidentifier() for part in module.split(".")):
            message = f"{module!r} is not a valid module name"
            yield Problem.error(f"preload[{index}]", message, 'write for example "tensorflow"')
    field = "preload" if is_chosen else "warm"
    commands = {f"roles.{name}.command": role.command for name, role in spec.roles.items()}
    for where, command in {"command": spec.command, **commands}.items():
        if command and (reason := program_source.check_command(list(command))):
            message = f"does nothing for {where!r}: {reason}"
            yield Problem.warning(field, message, "remove it, or run Python directly")
    if spec.network == PRIVATE:
        message = "has no effect in a private network, whose tasks are not forked from other processes"
        yield Problem.warning(field, message, "leave it out")


class Preloading(TaskStarter):
    """Forks tasks from processes that have imported their modules."""

    def prospect(self, plan: Plan, process: TaskPlan) -> str | None:
        """Return the modules, or `REFUSED` and a reason; None if not forked at first."""
        modules = _modules_for(plan, process, is_first=True)
        reason = program_source.check_command(list(process.argv)) if modules else ""
        return f"{REFUSED}{reason}" if reason else ",".join(modules) or None

    def order(self, plan: Plan, process: TaskPlan, *, is_first: bool) -> Mapping[str, object]:
        """Return the modules, a function's search path, and the order to stay warm."""
        modules, search = _modules_for(plan, process, is_first), _search_path(plan, process)
        recipe = self.recipe(plan, process.host)
        is_warm = recipe is not None and recipe == _recipe(plan, process)
        warm = {"recipe": recipe, "idle": plan.warm} if is_warm else None
        return {"preload": modules, "search": search, "warm": warm}

    def describe_function(self, name: str, functions: Sequence[FunctionType], data: bytes) -> Mapping[str, object]:
        """Return the modules a function may import, and the reason against early imports."""
        from tflaunch.features.preload import function_code  # it needs cloudpickle, which may be missing

        return function_code.describe(name, functions, data)

    def join_tests(self, directory: Path) -> SessionPart:
        """Return the server that keeps modules imported for later tests of a session."""
        return BetweenTests(directory)

    def recipe(self, plan: Plan, host: str) -> str | None:
        """Return the recipe of a host's tasks that use a warm server; None without any.

        A recipe is a hash of everything in the plan that decides what a task's process imports beforehand, and how,
        followed by ``=NAME`` for each variable with a secret. If the tasks of a host differ in that, its first one
        decides.
        """
        if plan.warm is None or not is_warm_host(plan.host(host)):
            return None
        return next((recipe for process in plan.on_host(host) if (recipe := _recipe(plan, process))), None)


def is_warm_host(host: HostPlan) -> bool:
    """Return whether processes on a host may outlive a run: not in a job or container."""
    return host.docker is None and host.engine is None


def _modules_for(plan: Plan, process: TaskPlan, is_first: bool) -> tuple[str, ...]:
    """Return the modules to preload for a process, or `AUTO` for its host to find.

    () for sidecars, which do not train, and in a private network: a fork that joins its user namespace would keep
    privileges there that only the execution of a program takes away. What is not asked for must pay: at first, a
    task needs another one that can be forked from the same process.
    """
    if process.role == SIDECAR or plan.network == PRIVATE:
        return ()
    if plan.preload != (AUTO,):
        return plan.preload
    if program_source.check_command(list(process.argv)) or plan.calls_function(process):
        return ()
    others = (task for task in plan.on_host(process.host) if task.role != SIDECAR and task.task != process.task)
    is_alone = is_first and _kind(plan, process) not in (_kind(plan, task) for task in others)
    return () if is_alone else plan.preload


def _kind(plan: Plan, process: TaskPlan) -> object:
    """Return what tasks must share to be forked from one process; None without Python."""
    if program_source.check_command(list(process.argv)):
        return None
    process = placeholders.fill(process, plan, "", "")
    own = (tf_config.NAME, *READ_WITH_DEVICES)
    env = {name: value for name, value in process.env.items() if not name.startswith(_OWN_PREFIX) and name not in own}
    return process.argv[0], process.argv[1] == "-u", process.workdir, process.unset, env


def _search_path(plan: Plan, process: TaskPlan) -> tuple[str, ...] | None:
    """Return a function's further module directories; None for other processes."""
    if not plan.calls_function(process):
        return None
    return plan.searched if plan.host(process.host).is_like_here else ()


def _recipe(plan: Plan, process: TaskPlan) -> str | None:
    modules = _modules_for(plan, process, is_first=True)
    if not modules or program_source.check_command(list(process.argv)):
        return None
    env = {name: value for name, value in process.env.items() if not name.startswith(_OWN_PREFIX)}
    inherits = plan.host(process.host).inherits_environment
    search = [place for place in _search_path(plan, process) or () if place != process.workdir]
    known = [process.argv[0], modules, search, sorted(env.items()), sorted(process.unset), inherits]
    sources = {source.env for source in plan.secrets.values() if source.env is not None}
    names = sorted({*plan.secrets, *sources})
    return "=".join([hashlib.sha256(json.dumps(known).encode("ascii")).hexdigest(), *names])
