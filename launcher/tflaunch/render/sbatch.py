"""The sbatch options that a plan needs. Pure."""

from __future__ import annotations

import math
import shlex
from collections import Counter

from tflaunch.clusterspec.model import Spec
from tflaunch.plan.model import Plan
from tflaunch.render.needs import devices

_USUAL_KILL_WAIT = 30.0  # seconds between Slurm's TERM and KILL, unless configured otherwise


def options(plan: Plan, spec: Spec) -> list[str]:
    """Return the sbatch options for a plan's job: what it needs, overridden by the spec's ``slurm``.

    Args:
        plan: of the spec, with a host for each node.
        spec: the spec.
    """
    processes = plan.processes()
    on_node = Counter(process.host for process in processes)
    most = max(on_node.values())
    resources = spec.container.resources
    wanted: dict[str, str] = {"job-name": plan.name, "nodes": str(len(on_node)), "ntasks-per-node": str(most)}
    if resources.cpu is not None:
        wanted["cpus-per-task"] = str(cores(resources.cpu))
    if resources.memory is not None:
        wanted["mem"] = f"{int(resources.memory[:-2]) * most}{resources.memory[-2]}"
    gpus = max(_gpus(plan).values())
    if gpus and not any(name == "gres" or name.startswith("gpus") for name in spec.slurm):
        wanted["gres"] = f"gpu:{gpus}"
    if plan.timeouts.deadline is not None:
        wanted["time"] = str(math.ceil(plan.timeouts.deadline / 60))
    wanted["requeue" if plan.restart.max else "no-requeue"] = ""
    if plan.elastic is not None:
        wanted["no-kill"] = ""  # the job continues without a failed node
    if plan.timeouts.grace >= _USUAL_KILL_WAIT:
        wanted["signal"] = f"B:TERM@{math.ceil(plan.timeouts.grace + _USUAL_KILL_WAIT)}"
    return [f"--{name}={shlex.quote(value)}" if value else f"--{name}" for name, value in _merged(wanted, spec)]


def with_gpus_of_nodes(spec: Spec) -> Spec:
    """Return the spec with the GPUs per node that its ``slurm`` requests, for the tasks there to share."""
    asked = spec.slurm.get("gpus-per-node", "").rpartition(":")[2]
    if not asked.isdecimal():
        return spec
    nodes = {
        host: settings.model_copy(update={"gpus": int(asked)})
        if settings.engine is not None and settings.gpus is None
        else settings
        for host, settings in spec.hosts.items()
    }
    return spec.model_copy(update={"hosts": nodes})


def cores(cpu: str) -> int:
    """Round a number of cores up, because Slurm takes only whole ones."""
    return math.ceil(float(cpu))


def _gpus(plan: Plan) -> Counter[str]:
    """Return the number of GPUs needed on each node."""
    wanted: Counter[str] = Counter()
    for process in plan.processes():
        wanted[process.host] += len(devices(process) or ())
    return wanted


def _merged(wanted: dict[str, str], spec: Spec) -> list[tuple[str, str]]:
    merged = {**wanted, **spec.slurm}
    for one, other in (("requeue", "no-requeue"), ("no-requeue", "requeue")):
        if one in spec.slurm:
            merged.pop(other, None)
    return list(merged.items())
