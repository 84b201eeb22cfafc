"""A heterogeneous job: roles whose tasks need different nodes."""

from __future__ import annotations

from typing import Any

import pytest

from support.specs import DIRECTORY, MACHINE, made
from tflaunch.clusterspec.model import Spec
from tflaunch.features.render import slurm, targets
from tflaunch.features.slurm import job_parts
from tflaunch.plan import placement, planner

pytestmark = pytest.mark.unit

TRAINING = {"cluster": {"chief": 1, "worker": 2, "ps": 1}, "command": ["x"], "strategy": "parameter_server"}
WORKERS_ON_GPUS = {
    "container": {"resources": {"cpu": 2}},
    "roles": {"worker": {"resources": {"cpu": 4, "gpu": 1, "features": ["a100", "ib"]}}},
}


def spec(**fields: Any) -> Spec:
    return placement.with_gpus(made({**TRAINING, **fields}))


def options(of: Spec) -> list[set[str]]:
    """Return the options of each part, on nodes with the number of the part in their names."""

    def on_nodes(number: int, part: Spec) -> Spec:
        return placement.onto(part, [f"part-{number}-{n}" for n in range(placement.nodes_wanted(part))])

    placed = job_parts.placed(of, on_nodes)
    plan = planner.make_plan(placed, DIRECTORY, MACHINE)
    assert {task.host.split("-")[1] for task in plan.tasks if task.role == "ps"} == {"0"}
    return [set(slurm.as_options(part)) for part in job_parts.wanted(plan, placed, slurm.USUAL_ENDING)]


def test_roles_with_the_same_resources_share_nodes() -> None:
    """One part for chief and ps, another one for the workers."""
    ours, workers = options(spec(**WORKERS_ON_GPUS))
    assert {"--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=2"} <= ours
    assert not [option for option in ours if option.startswith(("--gres", "--constraint"))]
    assert {"--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=4", "--gres=gpu:2"} <= workers
    assert "--constraint='a100&ib'" in workers


def test_each_named_host_is_a_node_of_the_part_of_its_tasks() -> None:
    """A sidecar stays with the host that it names."""
    _, workers = options(
        spec(
            **WORKERS_ON_GPUS | {"cluster": {"chief": ["c"], "worker": ["a", "b"], "ps": ["c"]}},
            sidecars={"feed": {"command": ["feed"], "host": "b"}},
        )
    )
    assert {"--nodes=2", "--ntasks-per-node=2"} <= workers


def test_a_job_without_such_roles_has_one_part() -> None:
    """Also where the container's resources are repeated."""
    assert len(options(spec(roles={"ps": {"resources": {"cpu": 2}}}, container={"resources": {"cpu": 2}}))) == 1


def test_a_task_gets_a_gpu_only_if_its_role_asks_for_one() -> None:
    """The number of the container is for tasks that train; that of a role is meant."""
    roles = spec(**WORKERS_ON_GPUS).roles
    assert [roles[role].gpus for role in ("chief", "worker", "ps")] == [0, 1, 0]
    roles = spec(container={"resources": {"gpu": 2}}, roles={"ps": {"resources": {"gpu": 1}}}).roles
    assert [roles[role].gpus for role in ("chief", "worker", "ps")] == [0, 2, 1]


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"cluster": {"chief": ["a"], "worker": ["a"], "ps": ["b"]}}, "roles.worker.resources"),
        ({"slurm": {"gpus-per-node": "1", "partition": "all"}}, "slurm.gpus-per-node"),
        ({"cluster": {"chief": 1, "ps": 1}, "discover": {"worker": "slurm"}}, "roles.worker.resources"),
    ],
)
def test_what_cannot_be_asked_for_is_named(fields: dict[str, Any], where: str) -> None:
    """Before anything is submitted."""
    (problem,) = job_parts.problems(made({**TRAINING, **WORKERS_ON_GPUS, **fields}))
    assert problem.where == where
    assert problem.hint


def test_a_script_has_nodes_that_are_alike() -> None:
    """`render --to slurm` says so."""
    roles = {"worker": {"resources": {"cpu": 4}}}
    problems = targets.find_problems("slurm", made({**TRAINING, "roles": roles}), MACHINE)
    (problem,) = problems
    assert problem.where == "roles.worker.resources"
