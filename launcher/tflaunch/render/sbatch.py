"""What sbatch is asked for on behalf of a plan. Pure."""

from __future__ import annotations

import math
import shlex
from collections import Counter

from tflaunch.clusterspec.model import Spec
from tflaunch.plan.model import Plan
from tflaunch.render.needs import devices

_USUAL_KILL_WAIT = 30.0  # seconds between Slurm's TERM and KILL, unless its cluster says otherwise


def options(plan: Plan, spec: Spec) -> list[str]:
    """Return the options for a job that runs a plan: what the plan needs, unless the spec's ``slurm`` says otherwise.

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
        wanted["no-kill"] = ""  # the job goes on without a node that fails
    if plan.timeouts.grace >= _USUAL_KILL_WAIT:
        wanted["signal"] = f"B:TERM@{math.ceil(plan.timeouts.grace + _USUAL_KILL_WAIT)}"
    return [f"--{name}={shlex.quote(value)}" if value else f"--{name}" for name, value in _merged(wanted, spec)]


def with_gpus_of_nodes(spec: Spec) -> Spec:
    """Return the spec with as many GPUs on each node as its ``slurm`` asks for, for the tasks there to share."""
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
    """Return a number of cores as Slurm counts them: whole ones."""
    return math.ceil(float(cpu))


def _gpus(plan: Plan) -> Counter[str]:
    """How many GPUs are wanted on each node."""
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
