"""The plan: one command, one environment, one TF_CONFIG per task. What `plan` prints, `up` performs."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Mapping
from typing import NamedTuple

from tflaunch.errors import Problem
from tflaunch.spec import ROLES, Address, Elastic, Restart, Timeouts
from tflaunch.tf_config import compile_tf_config

AUTO = "auto"
"""Stands for a value that is known only at the start."""

SIDECAR = "sidecar"
"""The role of processes outside TF_CONFIG; they have names of their own."""

DEFAULT_LEASE = 30.0
SERVER_PROGRAM = "${host:TFLAUNCH_SERVER}"
"""Stands for the path of TensorFlow's standard server on a host that is not this machine."""

CODE_DIRECTORY = "${host:TFLAUNCH_CODE}"
"""Stands for the place of the user's code on a host to which it is brought."""


class TaskPlan(NamedTuple):
    """One process. ``unset`` are variables that it does not inherit.

    ``address`` is None for a sidecar, unless it is TensorBoard (see `board`), whose port is its last argument.
    ``is_required``: the job fails when it fails for good. ``reasons``: why tflaunch has set a variable of ``env``.
    """

    task: str
    role: str
    task_index: int
    host: str
    address: Address | None
    argv: tuple[str, ...]
    workdir: str
    env: Mapping[str, str]
    unset: tuple[str, ...]
    is_required: bool = True
    reasons: Mapping[str, str] = {}


class HostPlan(NamedTuple):
    """One host, and how it is reached: this machine has its agent at hand, others over SSH or in a container.

    ``ssh``, ``identity_file``, ``python`` and ``docker`` are as in the spec; ``home`` is where tflaunch keeps its
    files on that host, None for the default place.
    """

    host: str
    is_local: bool
    ssh: str | None = None
    identity_file: str | None = None
    python: str | None = None
    home: str | None = None
    docker: str | None = None


class SyncPlan(NamedTuple):
    """The user's files that are brought to other hosts; ``paths`` are relative to ``directory``."""

    directory: str
    paths: tuple[str, ...]
    exclude: tuple[str, ...]


class Plan(NamedTuple):
    """Everything that `up` needs to know. Times are in seconds.

    ``keep``: when the job has ended, TensorBoard stays until the user ends it. ``preload``: modules that each host
    imports once for its tasks (see `preloading`).
    """

    name: str
    strategy: str
    success: str
    tasks: tuple[TaskPlan, ...]
    sidecars: tuple[TaskPlan, ...]
    hosts: tuple[HostPlan, ...]
    restart: Restart
    timeouts: Timeouts
    lease: float
    sync: SyncPlan | None = None
    elastic: Elastic | None = None
    preflight: bool = True
    keep: bool = False
    preload: tuple[str, ...] = ()

    def processes(self) -> tuple[TaskPlan, ...]:
        """Return tasks and sidecars together."""
        return self.tasks + self.sidecars

    def find(self, task: str) -> TaskPlan:
        """Return the plan of one task.

        Raises:
            KeyError: there is no such task.
        """
        role, _, index = task.partition(":")
        candidates = self.sidecars
        if role in ROLES and index.isdecimal():  # tasks stand in the order of their roles and numbers
            place = bisect.bisect_left(self.tasks, (ROLES.index(role), int(index)), key=_rank)
            candidates = self.tasks[place : place + 1]
        for candidate in candidates:
            if candidate.task == task:
                return candidate
        raise KeyError(task)

    def on_host(self, host: str) -> tuple[TaskPlan, ...]:
        """Return the processes of one host."""
        return tuple(process for process in self.processes() if process.host == host)

    def is_local(self, host: str) -> bool:
        """Whether a host of the plan is the machine on which tflaunch runs."""
        return any(known.host == host and known.is_local for known in self.hosts)


def role_of(task: str) -> str:
    """Return the role of a task by its name."""
    role, colon, _ = task.partition(":")
    return role if colon else SIDECAR


def _rank(task: TaskPlan) -> tuple[int, int]:
    return ROLES.index(task.role), task.task_index


def problems(plan: Plan) -> list[Problem]:
    """Return what is wrong with a plan that could not be seen in the spec alone."""
    others = [host.host for host in plan.hosts if not host.is_local]
    if plan.lease == 0 and others:
        message = f"0 would end the tasks on {others[0]} at the first hiccup of the network"
        return [Problem("error", "timeouts.lease", message, "leave it out, or give the time that a cut may last")]
    return []


def resolve(plan: Plan, ports: Mapping[str, int]) -> Plan:
    """Return the plan with these ports in its addresses and TF_CONFIGs, and that of TensorBoard in its arguments.

    Args:
        plan: a plan, resolved or not.
        ports: task to its port; tasks that are not in it keep what they have.
    """
    placed = [_placed(task, ports) for task in plan.tasks]
    sidecars = tuple(
        task._replace(argv=(*task.argv[:-1], str(task.address.port))) if task.address and task.address.port else task
        for task in (_placed(sidecar, ports) for sidecar in plan.sidecars)
    )
    addresses: dict[str, list[str]] = {}
    for task in placed:
        addresses.setdefault(task.role, []).append(str(task.address))
    resolved = []
    for task in placed:
        tf_config = compile_tf_config(plan.strategy, addresses, task.role, task.task_index)
        env = task.env if tf_config is None else {**task.env, "TF_CONFIG": tf_config}
        resolved.append(task._replace(env=env))
    return plan._replace(tasks=tuple(resolved), sidecars=sidecars)


def _placed(task: TaskPlan, ports: Mapping[str, int]) -> TaskPlan:
    """The task with its port in its address."""
    if task.address is None or task.task not in ports:
        return task
    return task._replace(address=Address(task.address.host, ports[task.task]))


def without(plan: Plan, hosts: Collection[str]) -> Plan:
    """Return the plan without the workers on these hosts; those left are numbered anew, as TensorFlow wants it."""
    kept = [task for task in plan.tasks if task.role != "worker" or task.host not in hosts]
    numbers = itertools.count()
    return plan._replace(
        tasks=tuple(_renumbered(task, next(numbers)) if task.role == "worker" else task for task in kept)
    )


def _renumbered(task: TaskPlan, index: int) -> TaskPlan:
    name = f"{task.role}:{index}"
    return task._replace(task=name, task_index=index, env={**task.env, "TFLAUNCH_TASK": name})


def wanted_ports(plan: Plan) -> dict[str, int]:
    """Return task to the port that an unresolved plan asks for, 0 where it is to be chosen."""
    return {task.task: task.address.port or 0 for task in plan.tasks if task.address is not None}
