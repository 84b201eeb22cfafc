"""Make plans for engines that start tasks themselves. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from tflaunch.clusterspec.model import Spec
from tflaunch.plan import attempts, placeholders, planner, tensorboard
from tflaunch.plan import model as planning
from tflaunch.plan.gpu_shares import HIDDEN
from tflaunch.plan.model import Machine, Plan, TaskPlan
from tflaunch.plan.task_env import AT_START

FIRST_PORT = 2222
HOST_VALUE = "${host:"
"""The prefix of a value that a host's agent expands."""

_SERVER = "/tflaunch/server.py"  # in place of the program of `server: true`
_OURS = (*AT_START, "TFLAUNCH_SET", "TF_GRPC_REUSE_PORT")


def fixed(spec: Spec, directory: PurePath, machine: Machine, server_text: str, first_port: int = FIRST_PORT) -> Plan:
    """Return a spec's plan with a port for every task.

    ``server_text`` is the program of `server: true`. Host settings for access over SSH are left out: interpreter,
    directory, login.
    """
    hosts = {name: host.only("address", "env", "gpus") for name, host in spec.hosts.items()}
    bare = machine._replace(environ={}, python_directory=None, server_program=_SERVER)
    plan = planner.make_plan(spec.model_copy(update={"hosts": hosts, "sync": None}), directory, bare)
    plan = placeholders.shown(attempts.resolve(plan, _ports(plan, first_port)), run=plan.name)
    given = {name for env in _environments(spec) for name in env}
    return plan._replace(
        tasks=tuple(_serving(_without_ours(task, given), server_text) for task in plan.tasks),
        sidecars=tuple(_without_ours(_open(task), given) for task in plan.sidecars),
    )


def _ports(plan: Plan, first_port: int) -> dict[str, int]:
    taken = {(task.host, task.address.port) for task in plan.tasks if task.address is not None}
    following: Counter[str] = Counter()
    ports = {tensorboard.NAME: tensorboard.USUAL_PORT}
    for task in plan.tasks:
        if task.address is not None and task.address.port is None:
            while (task.host, first_port + following[task.host]) in taken:
                following[task.host] += 1
            ports[task.task] = first_port + following[task.host]
            following[task.host] += 1
    return ports


def _serving(task: TaskPlan, server_text: str) -> TaskPlan:
    is_server = task.argv[1:] in ((_SERVER,), (planning.SERVER_PROGRAM,))
    return task._replace(argv=(task.argv[0], "-c", server_text)) if is_server else task


def _open(task: TaskPlan) -> TaskPlan:
    """Make TensorBoard listen where the engine can reach it."""
    words = list(task.argv)
    if tensorboard.is_board(task):
        words[words.index(tensorboard.HOST_OPTION) + 1] = "0.0.0.0"  # noqa: S104 - a container's own
        words += ["--port", str(tensorboard.USUAL_PORT)]
    return task._replace(argv=tuple(words))


def _environments(spec: Spec) -> Iterator[Mapping[str, str]]:
    yield spec.env
    for parts in (spec.roles, spec.sidecars, spec.hosts):
        yield from (part.env for part in parts.values())


def _without_ours(task: TaskPlan, given: set[str]) -> TaskPlan:
    """Remove variables that only tflaunch's agent could fill in or hold ports for."""
    excluded_hosts = {name for name in _OURS if name not in given}
    excluded_hosts |= {name for name in task.reasons if HOST_VALUE in task.env[name]}
    return task._replace(env={name: value for name, value in task.env.items() if name not in excluded_hosts})


DEVICES = "CUDA_VISIBLE_DEVICES"


def devices(process: TaskPlan) -> list[str] | None:
    """Return the GPUs that the plan gives a task, None if it gives no number."""
    if DEVICES not in process.reasons:
        return None
    named = process.env[DEVICES]
    return [] if named == HIDDEN else named.split(",")


def program(argv: Sequence[str]) -> Sequence[str]:
    """Return a command that `env` does not mistake for a variable assignment."""
    return ("sh", "-c", 'exec "$0" "$@"', *argv) if "=" in argv[0] else argv


def without_devices(process: TaskPlan) -> TaskPlan:
    """Return a process whose GPUs the engine assigns."""
    if devices(process) is None:
        return process
    return process._replace(env={name: value for name, value in process.env.items() if name != DEVICES})
