"""Warn of a run that leaves the nodes of its Slurm allocation unused."""

import os
from pathlib import Path

from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.values import LOCALHOST
from tflaunch.errors import Problem
from tflaunch.plan import placement


def find_warnings(spec: Spec, directory: Path) -> list[Problem]:
    """Return that all tasks run on this machine, if the allocation has other nodes.

    `salloc` leaves its shell on the login node; what `sbatch` and `srun` start is on a node, and knows its name.
    """
    job, nodes = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_JOB_NUM_NODES", "")
    is_on_node = "SLURMD_NODENAME" in os.environ
    if job is None or not nodes.isdecimal() or spec.kubernetes is not None or int(nodes) <= is_on_node:
        return []
    if placement.hosts_with_tasks(spec) != {LOCALHOST}:
        return []
    counted = "the node" if nodes == "1" else f"the {nodes} nodes"
    message = f"all tasks run on this machine, and not on {counted} of job {job} of Slurm"
    hint = 'to use them, write "hosts": {"discover": "slurm"}, or --set hosts.discover=slurm'
    return [Problem.warning("hosts", message, hint)]
