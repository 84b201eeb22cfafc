"""Divide a host's GPUs among the tasks that share it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # code that reads a stored plan counts its GPUs without pydantic
    from tflaunch.clusterspec.model import Spec
    from tflaunch.plan.model import TaskPlan

HIDDEN = "-1"
"""CUDA_VISIBLE_DEVICES of a task without a GPU."""

GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


class Member(NamedTuple):
    """A task of the cluster and the machine that it runs on."""

    task: str
    role: str
    machine: str
    host: str


def trains_on_gpu(strategy: str, role: str) -> bool:
    """Whether tasks of a role compute, unlike a chief that only coordinates workers."""
    return role == "worker" or (role == "chief" and strategy != "parameter_server")


def gpus_wanted(spec: Spec, strategy: str, members: Sequence[Member]) -> dict[str, int]:
    """Return task to its number of GPUs; the other tasks see all of their host.

    The number is that of the task's role; on a host with a number of its own, the training tasks without one share
    the rest evenly.
    """
    wanted: dict[str, int] = {}
    for member in members:
        settings = spec.roles.get(member.role)
        if settings is not None and settings.gpus is not None:
            wanted[member.task] = settings.gpus
    on_machine: dict[str, list[Member]] = {}
    for member in members:
        on_machine.setdefault(member.machine, []).append(member)
    declared = {member.machine: spec.host(member.host).gpus for member in members}
    for machine, total in declared.items():
        if total is None:
            continue
        there = on_machine[machine]
        open_ones = [member for member in there if member.task not in wanted]
        left = total - sum(wanted.get(member.task, 0) for member in there)
        trainers = [member for member in open_ones if trains_on_gpu(strategy, member.role)]
        for member in open_ones:
            wanted[member.task] = max(0, left) // len(trainers) if member in trainers else 0
    return wanted


def gpus_given(env: Mapping[str, str]) -> int:
    """Return the number of GPUs that a task with this environment was assigned."""
    devices = env.get("CUDA_VISIBLE_DEVICES", HIDDEN)
    return len(devices.split(",")) if GROWTH in env and devices not in ("", HIDDEN) else 0


def gpus_assigned(tasks: Iterable[TaskPlan]) -> int:
    """Return the number of GPUs that these tasks of one host were assigned and need."""
    return sum(gpus_given(task.env) for task in tasks if "CUDA_VISIBLE_DEVICES" in task.reasons)


def why_too_few(host: str, tasks: Iterable[TaskPlan], gpus: int | None) -> str:
    """Return that a host has fewer GPUs than assigned; "" if enough, or not known.

    A host without any GPU has enough: its driver may not be NVIDIA's, or the job is only tried out there.
    """
    wanted = gpus_assigned(tasks)
    if not gpus or gpus >= wanted:
        return ""
    some = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    return f"{host} has {some}, and its tasks are assigned {wanted}: correct `gpus` in roles or hosts"


def sharing_tasks(tasks: Iterable[TaskPlan]) -> list[str]:
    """Return the tasks of a host that use its GPUs together, as nothing assigns them."""
    env = [(task.task, task.reasons) for task in tasks if task.env.get("CUDA_VISIBLE_DEVICES", "0") not in ("", HIDDEN)]
    return [name for name, reasons in env if GROWTH in reasons and "CUDA_VISIBLE_DEVICES" not in reasons]


def gpu_slices(
    wanted: Mapping[str, int],
    members: Sequence[Member],
    visible: Mapping[str, Sequence[str]],
    given: Collection[str] = (),
) -> Iterator[tuple[str, str]]:
    """Yield each task with its CUDA_VISIBLE_DEVICES, the next devices of its machine.

    Args:
        wanted: task to its number of GPUs.
        members: the tasks, in the order of assignment.
        visible: machine to its usable devices; on other machines, devices are numbered from 0.
        given: machines on which a scheduler sets the devices in the agent's environment.
    """
    used: Counter[str] = Counter()
    for member in members:
        count = wanted.get(member.task)
        if count is None:
            continue
        first = used[member.machine]
        used[member.machine] += count
        names = visible.get(member.machine)
        if count and not names and member.machine in given:
            yield member.task, f"${{host:CUDA_VISIBLE_DEVICES[{first}:{first + count}]}}"
            continue
        names = names or [str(number) for number in range(first + count)]
        yield member.task, ",".join(names[first : first + count]) or HIDDEN
