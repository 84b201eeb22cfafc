"""Complete a compiled plan for an attempt: ports, moved tasks, lost workers. Pure."""

import itertools
from collections.abc import Collection, Mapping

from tflaunch.clusterspec.values import Address
from tflaunch.plan.model import SIDECAR, Plan, TaskPlan
from tflaunch.plan.tf_config import compile_tf_config
from tflaunch_worker.tf_config import NAME as TF_CONFIG


def moved(plan: Plan, places: Mapping[str, str]) -> Plan:
    """Return the plan with the tasks of some hosts on other ones.

    ``places``: host of the compiled plan to the host that takes its place.
    """
    if not places:
        return plan
    return plan.with_processes(lambda task: task_on(plan, task, places.get(task.host, task.host)))


def task_on(plan: Plan, task: TaskPlan, host: str) -> TaskPlan:
    """Return a compiled process as it is on a host; a sidecar's address stays."""
    if host == task.host:
        return task
    other = plan.variants_by_host.get(host, {}).get(task.task, task)
    if task.address is None or task.role == SIDECAR:
        return other._replace(host=host, address=task.address)
    return other._replace(host=host, address=Address(plan.host(host).outer_address, task.address.port))


def resolve(plan: Plan, ports: Mapping[str, int]) -> Plan:
    """Return the plan with these ports of tasks in its addresses."""

    def placed(process: TaskPlan) -> TaskPlan:
        if process.address is None or process.task not in ports:
            return process
        return process._replace(address=Address(process.address.host, ports[process.task]))

    return plan.with_processes(placed)


def addresses(plan: Plan) -> dict[str, list[str]]:
    """Return role to the ``host:port`` of its tasks, in the order of their index."""
    cluster: dict[str, list[str]] = {}
    for task in plan.tasks:
        cluster.setdefault(task.role, []).append(str(task.address))
    return cluster


def with_tf_configs(plan: Plan) -> Plan:
    """Return the plan with TF_CONFIGs, which agents add to environments at the start.

    Each of N tasks needs the addresses of all N, so plans that are kept or compared go without.
    """
    cluster = addresses(plan)

    def configured(task: TaskPlan) -> TaskPlan:
        text = compile_tf_config(plan.strategy, cluster, task.role, task.task_index)
        return task if text is None else task._replace(env={**task.env, TF_CONFIG: text})

    return plan._replace(tasks=tuple(map(configured, plan.tasks)))


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
