"""Move tasks to other hosts than those on which they start first. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tflaunch.clusterspec.values import Address
from tflaunch.plan.model import SIDECAR, Plan, TaskPlan


def moved(plan: Plan, places: Mapping[str, str]) -> Plan:
    """Return the plan with the tasks of some hosts on other ones.

    Args:
        plan: the plan as compiled, or with ports and without the workers of lost hosts.
        places: host of the compiled plan to the host that takes its place; others keep their tasks.
    """
    if not places:
        return plan
    tasks = tuple(_moved(plan, task, places.get(task.host)) for task in plan.tasks)
    sidecars = tuple(_moved(plan, task, places.get(task.host)) for task in plan.sidecars)
    return plan._replace(tasks=tasks, sidecars=sidecars)


def processes_for(plan: Plan, host: str) -> tuple[TaskPlan, ...]:
    """Return the processes of a host of the compiled plan; for a spare host, those that it would get first."""
    if host not in plan.spares:
        return plan.on_host(host)
    first = plan.processes()[0].host
    return tuple(task_on(plan, process, host) for process in plan.on_host(first))


def task_on(plan: Plan, task: TaskPlan, host: str) -> TaskPlan:
    """Return a task of the compiled plan as it is on a host."""
    return _moved(plan, task, None if host == task.host else host)


def _moved(plan: Plan, task: TaskPlan, host: str | None) -> TaskPlan:
    if host is None:
        return task
    other = plan.variants_by_host.get(host, {}).get(task.task, task)
    return other._replace(host=host, address=_address(plan, task, host))


def _address(plan: Plan, task: TaskPlan, host: str) -> Address | None:
    """Return the address of a task on a host; that of a sidecar stays."""
    if task.address is None or task.role == SIDECAR:
        return task.address
    return Address(plan.outer_address(host), task.address.port)
