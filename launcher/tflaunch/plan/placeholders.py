"""Placeholders in the command, the environment and the directory of a task, such as ``{task.index}``. Pure.

They are filled in when a task starts: ports are chosen then, and every start is another attempt. ``{{task.index}}`` is
the literal ``{task.index}``; all other braces (JSON, formats, ``${X}`` of a shell) stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tflaunch.clusterspec.values import ROLES
from tflaunch.plan.model import AUTO, Plan, TaskPlan
from tflaunch.plan.tf_config import NAME as TF_CONFIG
from tflaunch.plan.tf_config import WithTfConfig, without_tf_config

RUN, ATTEMPT, LEADER = "run", "attempt", "chief.host"
_CLUSTER = "cluster."
NAMES = ("task.index", "task.role", "task.name", ATTEMPT, RUN, *(_CLUSTER + role for role in ROLES), LEADER)
"""Every placeholder, without its braces."""

_PREFIXES = ("task", "cluster", "chief")
_NAME = rf"(?:{RUN}|{ATTEMPT}|(?:{'|'.join(_PREFIXES)})\.[A-Za-z_][A-Za-z0-9_-]*)"
_PLACEHOLDER = re.compile(rf"\{{\{{(?P<literal>{_NAME})\}}\}}|(?<!\$)\{{(?P<name>{_NAME})\}}")


def unknown(text: str) -> list[str]:
    """Return what is written like a placeholder in a text, and is none."""
    return [name for name in _names(text) if name not in NAMES]


def roles(text: str) -> list[str]:
    """Return the roles whose addresses a text asks for."""
    return [name.removeprefix(_CLUSTER) for name in _names(text) if name in NAMES and name.startswith(_CLUSTER)]


def needs_leader(text: str) -> bool:
    """Whether a text asks for the host of the task that leads."""
    return LEADER in _names(text)


def uses(text: str, name: str) -> bool:
    """Whether a text has a placeholder."""
    return name in _names(text)


def _names(text: str) -> list[str]:
    return [match["name"] for match in _PLACEHOLDER.finditer(text) if match["name"]] if "{" in text else []


def fill(process: TaskPlan, plan: Plan, run: str, attempt: str) -> TaskPlan:
    """Return a process with its placeholders filled in.

    Args:
        process: of the plan.
        plan: with its ports, as far as they are known.
        run: the run's name.
        attempt: the number of the attempt.
    """
    rest = without_tf_config(process.env)
    texts = (*process.argv, process.workdir, *rest.values())
    if not any("{" in text and _PLACEHOLDER.search(text) for text in texts):
        return process
    values = {RUN: run, ATTEMPT: attempt, **_of_task(process), **_of_cluster(plan)}
    env: Mapping[str, str] = {
        name: value if name == TF_CONFIG else filled(value, values) for name, value in rest.items()
    }
    if isinstance(process.env, WithTfConfig):
        env = process.env.with_rest(env)
    argv = tuple(filled(word, values) for word in process.argv)
    return process._replace(argv=argv, workdir=filled(process.workdir, values), env=env)


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a text with these values of placeholders; those that it lacks stay."""

    def value(match: re.Match[str]) -> str:
        name = match["name"]
        return f"{{{match['literal']}}}" if name is None else values.get(name, match[0])

    return _PLACEHOLDER.sub(value, text) if "{" in text else text


def as_the(process: TaskPlan, text: str) -> str:
    """Return a text with what it says of its task as it is for ``process``, for another that stands in its place."""
    values = _of_task(process)
    return re.sub(rf"(?<![${{])\{{({'|'.join(map(re.escape, values))})\}}", lambda match: values[match[1]], text)


def shown(plan: Plan, run: str = AUTO, attempt: str = "0") -> Plan:
    """Return the plan as people look at it: with its placeholders filled in as far as their values are known."""
    return plan._replace(
        tasks=tuple(fill(task, plan, run, attempt) for task in plan.tasks),
        sidecars=tuple(fill(task, plan, run, attempt) for task in plan.sidecars),
    )


def _of_task(process: TaskPlan) -> dict[str, str]:
    return {"task.index": str(process.task_index), "task.role": process.role, "task.name": process.task}


def _of_cluster(plan: Plan) -> dict[str, str]:
    addresses: dict[str, list[str]] = {}
    for task in plan.tasks:
        addresses.setdefault(task.role, []).append(str(task.address))
    values = {_CLUSTER + role: ",".join(addresses.get(role, ())) for role in ROLES}
    leader = next((task for task in plan.tasks if task.role in ("chief", "worker")), None)
    if leader is not None and leader.address is not None:
        values[LEADER] = leader.address.host
    return values
