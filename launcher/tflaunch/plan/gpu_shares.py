"""What each task gets of its host's GPUs and cores, when several tasks share it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # what reads a stored plan counts its GPUs here, without pydantic
    from tflaunch.clusterspec.model import Spec

HIDDEN = "-1"
"""CUDA_VISIBLE_DEVICES for a task that is to have no GPU."""


class Member(NamedTuple):
    """A task of the cluster, and the machine on which it runs."""

    task: str
    role: str
    machine: str
    host: str


def trains_on_gpu(strategy: str, role: str) -> bool:
    """Whether a task of that role computes: not ps and evaluator, nor a chief that only drives workers."""
    return role == "worker" or (role == "chief" and strategy != "parameter_server")


def gpus_wanted(spec: Spec, strategy: str, members: Sequence[Member]) -> dict[str, int]:
    """Return how many GPUs each task is to have; tasks that are not in it see what their host shows them.

    That is what its role says; where a host says how many it has, those that train there share the rest evenly.
    """
    wanted: dict[str, int] = {}
    for member in members:
        settings = spec.roles.get(member.role)
        if settings is not None and settings.gpus is not None:
            wanted[member.task] = settings.gpus
    on_machine: dict[str, list[Member]] = {}
    for member in members:
        on_machine.setdefault(member.machine, []).append(member)
    for machine, total in _declared(spec, members).items():
        there = on_machine[machine]
        open_ones = [member for member in there if member.task not in wanted]
        left = total - sum(wanted.get(member.task, 0) for member in there)
        trainers = [member for member in open_ones if trains_on_gpu(strategy, member.role)]
        for member in open_ones:
            wanted[member.task] = max(0, left) // len(trainers) if member in trainers else 0
    return wanted


def gpus_given(env: Mapping[str, str]) -> int:
    """Return how many GPUs tflaunch has given to a task with this environment."""
    devices = env.get("CUDA_VISIBLE_DEVICES", HIDDEN)
    return len(devices.split(",")) if "TF_FORCE_GPU_ALLOW_GROWTH" in env and devices not in ("", HIDDEN) else 0


def gpu_slices(
    wanted: Mapping[str, int],
    members: Sequence[Member],
    visible: Mapping[str, Sequence[str]],
    given: Collection[str] = (),
) -> Iterator[tuple[str, str]]:
    """Give each task the next devices of its machine, as CUDA_VISIBLE_DEVICES names them.

    Args:
        wanted: how many each is to have.
        members: the tasks, in the order in which they choose.
        visible: by machine, the devices that may be used there; a machine that is not in it counts from 0.
        given: machines on which a scheduler says it, to the agent.
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


def _declared(spec: Spec, members: Sequence[Member]) -> dict[str, int]:
    """How many GPUs machines have, by the spec."""
    return {
        member.machine: settings.gpus for member in members if (settings := spec.host(member.host)).gpus is not None
    }
