"""Placeholders like ``{task.index}`` in command, environment, directory. Pure.

They are filled in at each start, because ports and the attempt number are not known before. ``{{task.index}}`` is the
literal ``{task.index}``; all other braces (JSON, format strings, ``${X}`` of a shell) are left unchanged. Their
notation is in `clusterspec.templates`.
"""

import re
from collections.abc import Callable, Mapping

from tflaunch.clusterspec.templates import ATTEMPT, CLUSTER, LEADER, MATRIX, PLACEHOLDER, RUN, quote
from tflaunch.clusterspec.values import ROLES, bracketed
from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.plan.attempts import addresses, with_tf_configs
from tflaunch.plan.model import AUTO, Plan, TaskPlan
from tflaunch_worker import host_vars

_LONGEST_NAME = 63
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


def names(text: str) -> list[str]:
    """Return the placeholders in a text, known or not."""
    return [match["name"] for match in PLACEHOLDER.finditer(text) if match["name"]] if "{" in text else []


def fill(process: TaskPlan, plan: Plan, run: str, attempt: str) -> TaskPlan:
    """Return a process with its placeholders filled in by the plan's ports so far."""
    if not any("{" in text and PLACEHOLDER.search(text) for text in _texts_of(process)):
        return process
    values = {RUN: run, ATTEMPT: attempt, **_of_task(process), **_of_cluster(plan)}
    return _with_texts(process, lambda text: filled(text, values))


def _texts_of(process: TaskPlan) -> tuple[str, ...]:
    return (*process.argv, process.workdir, *process.env.values())


def _with_texts(process: TaskPlan, change: Callable[[str], str]) -> TaskPlan:
    env = {name: change(value) for name, value in process.env.items()}
    return process._replace(argv=tuple(map(change, process.argv)), workdir=change(process.workdir), env=env)


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a text with these placeholders replaced by their values."""

    def value(match: re.Match[str]) -> str:
        name = match["name"]
        return f"{{{match['literal']}}}" if name is None else values.get(name, match[0])

    return PLACEHOLDER.sub(value, text) if "{" in text else text


def matrix_values_in(text: str) -> list[str]:
    """Return the names of the values of a matrix that a text refers to."""
    return [name.removeprefix(MATRIX) for name in names(text) if name.startswith(MATRIX)]


def matrix_names(plan: Plan) -> list[str]:
    """Return the names of values of a matrix that are missing, by their first use."""
    texts = (text for process in plan.processes() for text in _texts_of(process))
    return list(dict.fromkeys(name for text in texts for name in matrix_values_in(text)))


def require_matrix_values(plan: Plan) -> None:
    """Raise a TflaunchError if a value of a matrix is missing in a plan."""
    if missing := matrix_names(plan):
        name = missing[0]
        raise TflaunchError(f"{{matrix.{name}}} has no value; give some with --matrix {name}=1,2", EXIT_USAGE)


def with_matrix(plan: Plan, values: Mapping[str, str]) -> Plan:
    """Return the plan with these values of a matrix filled in, and in its name."""
    quoted = {MATRIX + name: quote(value) for name, value in values.items()}

    name = f"{plan.name}-{values_in_name(values)}"[:_LONGEST_NAME].rstrip("-")
    placed = plan.with_processes(lambda process: _with_texts(process, lambda text: _with_values(text, quoted)))
    return placed._replace(name=name, matrix=dict(values))


def values_in_name(values: Mapping[str, str]) -> str:
    """Return the values of a matrix as in the name of a run: ``lr0.1-batch32``."""
    return "-".join(_NOT_IN_NAMES.sub("_", name + value) for name, value in values.items())


def name_without_values(name: str, values: Mapping[str, str]) -> str:
    """Return the name that a plan had before `with_matrix` added these values."""
    ending = f"-{values_in_name(values)}" if values else ""
    shortest = 1 if len(name) >= _LONGEST_NAME - 1 else len(ending)  # a name of that length may have been cut
    lengths = range(len(ending), shortest - 1, -1)
    return next((name[:-length] for length in lengths if length and name.endswith(ending[:length])), name)


def as_the(process: TaskPlan, text: str) -> str:
    """Return a text for another process with ``{task.*}`` filled in for ``process``."""
    return _with_values(text, _of_task(process))


def _with_values(text: str, values: Mapping[str, str]) -> str:
    """Fill these placeholders in a text; others are left to later stages."""
    return re.sub(rf"(?<![${{])\{{({'|'.join(map(re.escape, values))})\}}", lambda match: values[match[1]], text)


def shown(plan: Plan, run: str = AUTO, attempt: str = "0", environ: Mapping[str, str] | None = None) -> Plan:
    """Return the plan for display: with TF_CONFIGs, and with known values filled in.

    ``environ``: the variables of this machine, by which agents decide on an empty grpc_proxy; None for others.
    """

    def settled(process: TaskPlan) -> TaskPlan:
        process = fill(process, plan, run, attempt)
        is_known = environ is not None and plan.host(process.host).is_like_here
        if not is_known or host_vars.has_proxy({**(environ or {}), **process.env}):
            return process
        return process._replace(env={name: text for name, text in process.env.items() if name != "grpc_proxy"})

    return with_tf_configs(plan.with_processes(settled))


def _of_task(process: TaskPlan) -> dict[str, str]:
    return {"task.index": str(process.task_index), "task.role": process.role, "task.name": process.task}


def _of_cluster(plan: Plan) -> dict[str, str]:
    cluster = addresses(plan)
    values = {CLUSTER + role: ",".join(cluster.get(role, ())) for role in ROLES}
    leader = next((task for task in plan.tasks if task.role in ("chief", "worker")), None)
    if leader is not None and leader.address is not None:
        values[LEADER] = bracketed(leader.address.host)  # mostly a port follows
    return values
