"""Complete a compiled plan for an attempt: ports, moved tasks, lost workers. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

from tflaunch.clusterspec.values import Address
from tflaunch.plan.model import SIDECAR, Plan, TaskPlan
from tflaunch.plan.tf_config import compile_tf_config
from tflaunch_worker.tf_config import NAME as TF_CONFIG


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


def resolve(plan: Plan, ports: Mapping[str, int]) -> Plan:
    """Return the plan with these ports in its addresses.

    Args:
        plan: a plan, resolved or not.
        ports: task to its port; other tasks keep their ports.
    """
    tasks = tuple(_placed(task, ports) for task in plan.tasks)
    sidecars = tuple(_placed(sidecar, ports) for sidecar in plan.sidecars)
    return plan._replace(tasks=tasks, sidecars=sidecars)


def addresses(plan: Plan) -> dict[str, list[str]]:
    """Return role to the ``host:port`` of its tasks, in the order of their index."""
    found: dict[str, list[str]] = {}
    for task in plan.tasks:
        found.setdefault(task.role, []).append(str(task.address))
    return found


def with_tf_configs(plan: Plan) -> Plan:
    """Return the plan with TF_CONFIGs, which agents add to environments at the start.

    Each of N tasks needs the addresses of all N, so plans that are kept or compared go without.
    """
    cluster = addresses(plan)

    def configured(task: TaskPlan) -> TaskPlan:
        text = compile_tf_config(plan.strategy, cluster, task.role, task.task_index)
        return task if text is None else task._replace(env={**task.env, TF_CONFIG: text})

    return plan._replace(tasks=tuple(map(configured, plan.tasks)))


def _placed(task: TaskPlan, ports: Mapping[str, int]) -> TaskPlan:
    """Return the task with its port in its address."""
    if task.address is None or task.task not in ports:
        return task
    return task._replace(address=Address(task.address.host, ports[task.task]))


def without(plan: Plan, hosts: Collection[str]) -> Plan:
    """Return the plan without workers on these hosts; TensorFlow allows no gaps."""
    kept = [task for task in plan.tasks if task.role != "worker" or task.host not in hosts]
    numbers = itertools.count()
    return plan._replace(
        tasks=tuple(_renumbered(task, next(numbers)) if task.role == "worker" else task for task in kept)
    )


def _renumbered(task: TaskPlan, index: int) -> TaskPlan:
    name = f"{task.role}:{index}"
    return task._replace(task=name, env={**task.env, "TFLAUNCH_TASK": name})


def wanted_port(task: TaskPlan) -> int:
    """Return the port that a task requests, 0 for a port still to be chosen."""
    return (task.address.port if task.address is not None else None) or 0
