"""The resources that a task needs from an engine. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tflaunch.clusterspec.model import Role, Spec
from tflaunch.plan.gpu_shares import HIDDEN, trains_on_gpu
from tflaunch.plan.model import TaskPlan

DEVICES = "CUDA_VISIBLE_DEVICES"


def with_gpus(spec: Spec) -> Spec:
    """Return the spec with the container's number of GPUs in the roles that do not set one."""
    gpus = spec.container.resources.gpu
    if gpus is None:
        return spec
    roles = dict(spec.roles)
    for role in spec.cluster:
        settings = roles.get(role) or Role()
        if settings.gpus is None:
            wanted = gpus if trains_on_gpu(spec.effective_strategy(), role) else 0
            roles[role] = settings.model_copy(update={"gpus": wanted})
    return spec.model_copy(update={"roles": roles})


def devices(process: TaskPlan) -> list[str] | None:
    """Return the GPUs that the plan gives a task, possibly none; None if nothing is specified."""
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
