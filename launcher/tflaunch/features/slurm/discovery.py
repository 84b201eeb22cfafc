"""Find the hosts of the current Slurm allocation; agents run as its job steps."""

import itertools
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from tflaunch.discovery.base import Engine, Found, NotFoundError
from tflaunch.features.slurm import jobs
from tflaunch.plan.model import TaskPlan

_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_REMEDY = "call tflaunch in one that salloc or sbatch has made, or let `up --on slurm` submit a job"


class Slurm(Engine):
    """``slurm``: the allocation's nodes, each once per task; ``slurm:1``: of one part."""

    inherits = True
    holds = True

    def find(self, where: str, directory: Path) -> Found:
        """Return the nodes of the allocation in which this process is."""
        job, part = os.environ.get("SLURM_JOB_ID"), f"_HET_GROUP_{where}" if where else ""
        nodes = os.environ.get(f"SLURM_JOB_NODELIST{part}")
        if job is None or (nodes is None and not part):
            raise NotFoundError("this is not a Slurm allocation: SLURM_JOB_ID is not set", _REMEDY)
        if nodes is None:
            raise NotFoundError(f"job {job} of Slurm has no part {where!r}", 'write "slurm" for all of its nodes')
        try:
            names = jobs.host_names(nodes)
        except jobs.SlurmError as error:
            raise NotFoundError(f"Slurm does not name the nodes: {error}", _REMEDY) from None
        slots = _tasks_per_node(os.environ.get(f"SLURM_TASKS_PER_NODE{part}", ""), len(names))
        return Found(
            [f"{name} slots={count}" for name, count in zip(names, slots, strict=True)],
            f"{job}+{where}" if where else job,
        )

    def words(self, host: str, handle: str) -> Sequence[str]:
        """Return the srun command for one node of a job, and what starts its container."""
        job, _, container = handle.partition(" ")
        return [*jobs.step_command(job, host), *shlex.split(container)]

    def variables(self, tasks: Sequence[TaskPlan]) -> Mapping[str, Mapping[str, str]]:
        """Return the variables that srun would set for the tasks if they were one step."""
        on_nodes: dict[str, list[str]] = {}
        for task in tasks:
            on_nodes.setdefault(task.host, []).append(task.task)
        counts, cpus = [len(names) for names in on_nodes.values()], os.environ.get("SLURM_CPUS_PER_TASK")
        of_step = {
            "SLURM_NTASKS": str(len(tasks)),
            "SLURM_STEP_NUM_TASKS": str(len(tasks)),
            "SLURM_STEP_NUM_NODES": str(len(on_nodes)),
            "SLURM_STEP_NODELIST": ",".join(on_nodes),
            "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, counts)),
            **({"SLURM_CPUS_PER_TASK": cpus} if cpus else {}),
        }
        ranks = itertools.count()
        return {
            name: {**of_step, "SLURM_PROCID": str(next(ranks)), "SLURM_LOCALID": str(local), "SLURM_NODEID": str(node)}
            for node, names in enumerate(on_nodes.values())
            for local, name in enumerate(names)
        }

    def is_over(self, handle: str) -> bool:
        """Whether the job has ended, and with it everything that ran in it."""
        job = jobs.find_job(handle.partition(" ")[0])
        return job is None or not job.is_running


def _tasks_per_node(text: str, nodes: int) -> list[int]:
    """Parse SLURM_TASKS_PER_NODE, as ``2(x3),1``; 1 per node if the count mismatches."""
    counts: list[int] = []
    for part in text.split(","):
        parts = _TASKS.fullmatch(part)
        if parts is not None:
            counts += [int(parts[1])] * int(parts[2] or 1)
    return counts if len(counts) == nodes else [1] * nodes
