"""Convert a plan to JSON and back."""

from typing import Any

from tflaunch import records
from tflaunch.clusterspec.values import ROLES, STRATEGIES
from tflaunch.plan.model import Plan


def as_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON in its documented form."""
    data: dict[str, Any] = records.as_json(plan)
    return data


def from_json(data: object) -> Plan:
    """Return the plan in data of `as_json`.

    Raises:
        ValueError: the data is not a plan; names the wrong field.
    """
    try:
        plan = records.read_record(Plan, data)
        _check(plan)
    except ValueError as error:
        raise ValueError(f"the plan is damaged: {error}") from None
    return plan


def _check(plan: Plan) -> None:
    """Raise ValueError unless all names refer to something, as others rely on."""
    processes, hosts = plan.processes(), {host.host for host in plan.hosts}
    names = {process.task for process in processes}
    for task in plan.tasks:
        role, _, index = task.task.partition(":")
        if role not in ROLES or not (index.isdecimal() and len(index) < 10):
            raise ValueError(f"{task.task[:60]!r} is not a task")
    ranks = [(ROLES.index(task.role), task.task_index) for task in plan.tasks]
    moved = [task for variant in plan.variants for task in variant.tasks]
    are_unique = len(names) == len(processes) and len(hosts) == len(plan.hosts) and ranks == sorted(set(ranks))
    exist = hosts.issuperset([*plan.spares, *(host for variant in plan.variants for host in variant.hosts)])
    exist = exist and plan.strategy in STRATEGIES and names.issuperset(task.task for task in moved)
    can_run = all(process.host in hosts and process.argv for process in (*processes, *moved))
    if not (are_unique and exist and can_run) or {process.host for process in processes} & {*plan.spares}:
        raise ValueError("its tasks and hosts do not fit together")
