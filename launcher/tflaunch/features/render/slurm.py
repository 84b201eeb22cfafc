"""Which sbatch options a plan's job needs, and on which nodes its tasks are. Pure."""

import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tflaunch.clusterspec.model import Host, Spec
from tflaunch.clusterspec.values import EVERY_HOST, LOCALHOST, ROLES, Address
from tflaunch.features.render.target_plan import devices
from tflaunch.features.requested_gpus import with_gpus
from tflaunch.plan import placement
from tflaunch.plan.model import Plan, TaskPlan

_ALL_PARTS = 3  # H:M:S; after days, H and H:M are enough
_USUAL_KILL_WAIT = 30.0
_TO_END = 5.0  # seconds from the end of the grace until the job has ended
_MOST_EARLY = 60.0  # seconds by which TERM may come before the time that ``--signal`` names
_TYPED = r"^(?:[^:]*:)?(\d+)$"
_AMONG_OTHERS = r"(?:^|,){}(?:[:=][^:=,]+)?[:=](\d+)(?:,|$)"
_GPUS_OF_NODE = {"gpus-per-node": _TYPED, "gres": _AMONG_OTHERS.format("gpu")}
_GPUS_OF_TASK = {"gpus-per-task": _TYPED, "tres-per-task": _AMONG_OTHERS.format("gres[/:]gpu")}
_NOWHERE = Address(LOCALHOST, None)
REQUEUE, NO_REQUEUE, AT_LIMIT = "requeue", "no-requeue", "at_limit"
"""Options of sbatch, and a value that only tflaunch knows: the run goes on after its time limit, too."""


def parts_of(spec: Spec) -> list[list[str]]:
    """Return the roles of each part of a job: those with equal resources."""
    parts: dict[tuple[object, ...], list[str]] = {}
    for role in sorted(spec.cluster, key=[*ROLES, *spec.cluster].index):
        resources = spec.resources(role)
        needed = (resources.cpu, resources.memory, resources.gpu, resources.features)
        parts.setdefault(needed, []).append(role)
    return list(parts.values()) or [[]]


class Ending(NamedTuple):
    """How a Slurm ends jobs: KILL follows ``kill_wait`` seconds after TERM.

    ``reaches_all``: TERM goes to every process of the job, not only to those that Slurm has started itself.
    """

    kill_wait: float = _USUAL_KILL_WAIT
    reaches_all: bool = False


USUAL_ENDING = Ending()


def as_arguments(wanted: Mapping[str, str]) -> list[str]:
    """Return options as arguments of sbatch."""
    return [f"--{name}={value}" if value else f"--{name}" for name, value in wanted.items()]


def as_options(wanted: Mapping[str, str]) -> list[str]:
    """Return options as lines of a script of sbatch have them."""
    return as_arguments({name: value and shlex.quote(value) for name, value in wanted.items()})


def wanted_of_job(
    plan: Plan, spec: Spec, processes: Sequence[TaskPlan], ending: Ending = USUAL_ENDING
) -> dict[str, str]:
    """Return the sbatch options for a plan's job, or for its part with some processes.

    The plan has a host for each node. The resources of a part are those of its first task.
    """
    resources = spec.resources(processes[0].role)
    on_node = Counter(process.host for process in processes)
    most = max(on_node.values())
    wanted: dict[str, str] = {"job-name": plan.name, "nodes": str(len(on_node)), "ntasks-per-node": str(most)}
    if resources.cpu is not None:
        wanted["cpus-per-task"] = str(cores(resources.cpu))
    if resources.memory is not None:
        wanted["mem"] = f"{int(resources.memory[:-2]) * most}{resources.memory[-2]}"
    if resources.features:
        wanted["constraint"] = "&".join(resources.features)
    gpus = max(_gpus(processes).values())
    if gpus and not _asks_for_gpus(spec.slurm):
        wanted["gres"] = f"gpu:{gpus}"
    if plan.timeouts.deadline is not None:
        wanted["time"] = str(math.ceil(plan.timeouts.deadline / 60))
    wanted[REQUEUE if plan.restart.max else NO_REQUEUE] = ""
    if plan.elastic is not None:
        wanted["no-kill"] = ""  # the job continues without a failed node
    merged = _merged(wanted, spec)
    if "signal" not in merged and (lead := _lead_of_term(plan, ending, seconds_in(merged.get("time", "")))):
        merged["signal"] = f"B:TERM@{lead}"
    return merged


def _lead_of_term(plan: Plan, ending: Ending, limit: float) -> int:
    """Return how many seconds before the time limit the supervisor gets TERM.

    At the limit, KILL follows after KillWait, and a TERM that reaches all processes comes twice (_rpc_timelimit in
    slurmd's req.c). Of a short time limit nothing is taken.
    """
    grace = plan.timeouts.grace
    lead = 0
    if grace + _TO_END >= ending.kill_wait:
        lead = math.ceil(grace + _USUAL_KILL_WAIT)
    elif ending.reaches_all:
        lead = math.ceil(grace + _TO_END)
    return lead if 2 * (lead + _MOST_EARLY) <= limit else 0


def seconds_in(limit: str) -> float:
    """Return the seconds of a time limit of sbatch, infinite for no valid one."""
    days, dash, rest = limit.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in (*parts, *([days] if dash else []))):
        return math.inf
    units = (3600, 60, 1) if dash or len(parts) >= _ALL_PARTS else (60, 1)  # M or M:S
    return float(int(days or 0) * 86_400 + sum(int(part) * unit for part, unit in zip(parts, units, strict=False)))


def with_gpus_of_job(spec: Spec, on_nodes: Mapping[str, int] = {}) -> Spec:
    """Return the spec with the GPUs that its resources and its ``slurm`` request.

    ``on_nodes``: how many the job has on each node, if it has begun.
    """
    options = spec.slurm
    each, on_node = _number(_GPUS_OF_TASK, options), _number(_GPUS_OF_NODE, options)
    if each is not None and "gpu" not in spec.container.resources.model_fields_set:
        resources = spec.container.resources.model_copy(update={"gpu": each})
        spec = spec.model_copy(update={"container": spec.container.model_copy(update={"resources": resources})})
    spec = with_gpus(spec)
    if not _asks_for_gpus(options) or (on_node is None and not on_nodes):
        return spec
    nodes = {}
    for host in placement.named_hosts(spec):
        settings = spec.hosts.get(host) or Host()
        if settings.gpus is None:
            settings = settings.model_copy(update={"gpus": on_nodes.get(host, on_node)})
        nodes[host] = settings
    return spec.model_copy(update={"hosts": {**spec.hosts, **nodes}})


def _asks_for_gpus(options: Mapping[str, str]) -> bool:
    return any(name in ("gres", "tres-per-task") or name.startswith("gpus") for name in options)


def _number(forms: Mapping[str, str], options: Mapping[str, str]) -> int | None:
    """Return the first number in some sbatch options, given a pattern for each."""
    found = (re.search(pattern, options.get(name, "")) for name, pattern in forms.items())
    return next((int(match[1]) for match in found if match), None)


def cores(cpu: str) -> int:
    """Round a number of cores up, because Slurm takes only whole ones."""
    return math.ceil(float(cpu))


def _gpus(processes: Sequence[TaskPlan]) -> Counter[str]:
    wanted: Counter[str] = Counter()
    for process in processes:
        wanted[process.host] += len(devices(process) or ())
    return wanted


def _merged(wanted: dict[str, str], spec: Spec) -> dict[str, str]:
    merged = {**wanted, **spec.slurm}
    for one, other in ((REQUEUE, NO_REQUEUE), (NO_REQUEUE, REQUEUE)):
        if one in spec.slurm:
            merged.pop(other, None)
    if merged.get(REQUEUE) == AT_LIMIT:
        merged[REQUEUE] = ""
    return merged


def nodes_wanted(spec: Spec) -> int:
    """Return a spec's scheduler nodes: one per named host, or ``nodes`` of ``slurm``."""
    asked = spec.slurm.get("nodes", "").partition("-")[0]
    is_asked = asked.isdecimal() and int(asked) > 0 and _has_counts_only(spec)
    return int(asked) if is_asked else len(placement.named_hosts(spec))


def onto(spec: Spec, nodes: Sequence[str]) -> Spec:
    """Return the spec with its tasks placed on the nodes of a scheduler.

    Tasks given only as counts are spread; otherwise the nodes replace the named hosts in order. Of the hosts' settings
    only ``env`` and ``gpus`` are kept, and a sidecar without a host of the cluster goes to the first node. There are at
    least as many nodes as the spec names hosts.
    """
    if _has_counts_only(spec) and len(nodes) > 1:
        sidecars = {name: sidecar.model_copy(update={"host": nodes[0]}) for name, sidecar in spec.sidecars.items()}
        return placement.spread(spec, nodes).model_copy(update={"sidecars": sidecars})
    names = dict(zip(placement.named_hosts(spec), nodes, strict=False))
    cluster = {
        role: tuple(Address(names[address.host], address.port) for address in addresses)
        for role, addresses in spec.cluster.items()
    }
    sidecars = {
        name: sidecar.model_copy(update={"host": names.get(sidecar.host, nodes[0])})
        for name, sidecar in spec.sidecars.items()
    }
    hosts = {
        names.get(host, host): settings.only("env", "gpus")
        for host, settings in spec.hosts.items()
        if host in names or host == EVERY_HOST
    }
    return spec.model_copy(update={"cluster": cluster, "sidecars": sidecars, "hosts": hosts})


def _has_counts_only(spec: Spec) -> bool:
    return all(address == _NOWHERE for addresses in spec.cluster.values() for address in addresses)
