"""What a job of Slurm is asked for: options of sbatch, from a spec and its plan."""

from __future__ import annotations

from typing import Any

import pytest

from support.specs import DIRECTORY, MACHINE, made
from tflaunch.features.render import slurm
from tflaunch.plan import placement, planner

pytestmark = pytest.mark.unit


def options(**fields: Any) -> set[str]:
    """Return the options passed to sbatch."""
    read = made({"cluster": {"worker": 1}, "command": ["x"], **fields})
    nodes = [f"n{number}" for number in range(placement.nodes_wanted(read))]
    read = placement.onto(read, nodes)
    plan = planner.make_plan(read, DIRECTORY, MACHINE)
    return set(slurm.as_options(slurm.wanted_of_job(plan, read, plan.processes())))


def test_a_job_has_what_its_plan_needs() -> None:
    """Nodes, tasks per node, resources, time and restarts."""
    usual = {"--job-name=job", "--nodes=1", "--ntasks-per-node=1", "--requeue"}
    assert options() == usual
    assert options(restart={"max": 0}) == usual - {"--requeue"} | {"--no-requeue"}
    assert "--time=2" in options(timeouts={"deadline": "61s"})
    assert "--no-kill" in options(cluster={"worker": ["a", "b"]}, elastic={"min_workers": 1})
    assert "--signal=B:TERM@90" in options(timeouts={"grace": 60})
    resources = {"cpu": "1.5", "memory": "4Gi"}
    assert {"--cpus-per-task=2", "--mem=8G"} <= options(cluster={"worker": 2}, container={"resources": resources})
    assert "--gres=gpu:3" in options(cluster={"worker": 3}, roles={"worker": {"gpus": 1}})


def test_what_the_spec_says_of_the_job_counts() -> None:
    """It overrides our own options; text is quoted for the script."""
    said = options(
        slurm={"job-name": "my job", "exclusive": True, "no-requeue": True, "gpus-per-node": "a100:2"},
        roles={"worker": {"gpus": 1}},
    )
    assert {"--job-name='my job'", "--exclusive", "--no-requeue", "--gpus-per-node=a100:2"} <= said
    assert not any(option.startswith("--gres") for option in said)
    assert "--requeue" not in said
