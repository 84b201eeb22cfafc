"""The parts of a heterogeneous job: roles whose tasks need different nodes. Pure.

Slurm gives each part nodes of its own, which no other part shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.values import LOCALHOST
from tflaunch.errors import Problem
from tflaunch.features.render import slurm
from tflaunch.features.render.slurm import Ending, parts_of
from tflaunch.plan.model import Plan

_OF_NODES = ("constraint", "cpus", "gpus", "gres", "mem", "nodes", "ntasks")


def problems(spec: Spec) -> Iterator[Problem]:
    """Find what keeps the roles of a spec from having different resources."""
    if spec.discover:
        for role, settings in spec.roles.items():
            if settings.resources.model_fields_set:
                message = "asks for nodes of its own, and discover finds nodes that are alike"
                yield Problem("error", f"roles.{role}.resources", message, "give numbers of tasks in cluster")
        return
    parts = parts_of(spec)
    if len(parts) > 1:
        yield from _shared_hosts(spec, parts)
        for name in spec.slurm:
            if name.startswith(_OF_NODES):
                message = "is about nodes, and roles with different resources have different nodes"
                yield Problem("error", f"slurm.{name}", message, "write what each task needs as roles.ROLE.resources")


def _shared_hosts(spec: Spec, parts: list[list[str]]) -> Iterator[Problem]:
    users: dict[str, str] = {}
    for roles in parts:
        for role in roles:
            for host in dict.fromkeys(address.host for address in spec.cluster[role] if address.host != LOCALHOST):
                other = users.setdefault(host, role)
                if other not in roles:
                    message = f"differs from that of {other}, and both have tasks on {host!r}"
                    yield Problem("error", f"roles.{role}.resources", message, "give them different hosts")


def placed(spec: Spec, place: Callable[[int, Spec], Spec]) -> Spec:
    """Return the spec with its tasks on nodes.

    Args:
        spec: a spec without `problems`.
        place: returns the spec of a part, given its number, with its tasks on the nodes of the part.
    """
    parts = parts_of(spec)
    part_of = {address.host: n for n, roles in enumerate(parts) for role in roles for address in spec.cluster[role]}
    merged: dict[str, dict[str, Any]] = {"cluster": dict.fromkeys(spec.cluster), "hosts": {}, "sidecars": {}}
    for number, roles in enumerate(parts):
        part: dict[str, Any] = {
            "cluster": {role: spec.cluster[role] for role in roles},
            "sidecars": {name: each for name, each in spec.sidecars.items() if part_of.get(each.host, 0) == number},
        }
        found = place(number, spec.model_copy(update=part))
        for field, values in merged.items():
            values.update(getattr(found, field))
    return spec.model_copy(update={**merged, "discover": {}, "pool": None})


def wanted(plan: Plan, spec: Spec, ending: Ending) -> list[dict[str, str]]:
    """Return each part's sbatch options; arguments as in `render.slurm.wanted_of_job`."""
    parts = parts_of(spec)
    if len(parts) == 1:
        return [slurm.wanted_of_job(plan, spec, plan.processes(), ending)]
    nodes = [{task.host for task in plan.tasks if task.role in roles} for roles in parts]
    there = [[each for each in plan.processes() if each.host in some] for some in nodes]
    return [slurm.wanted_of_job(plan, spec, processes, ending) for processes in there]
