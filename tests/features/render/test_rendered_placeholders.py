"""Placeholders in rendered files."""

from __future__ import annotations

from typing import Any

import pytest

from support.specs import DIRECTORY, MACHINE, made
from tflaunch.features.render import targets

pytestmark = pytest.mark.unit

TRAIN = ["python", "train.py"]
TO_RENDER = {
    "cluster": {"worker": 12},
    "command": [*TRAIN, "--shard={task.index}/{task.name}", "{cluster.worker}", "{run}"],
    "container": {"image": "train"},
    "name": "mine",
}


@pytest.mark.parametrize("engine", ["compose", "slurm"])
def test_an_engine_with_a_command_for_each_task_has_the_values(engine: str):
    """Its ports are fixed."""
    text = targets.render_spec(engine, made(TO_RENDER), DIRECTORY, MACHINE, "")
    assert "--shard=11/worker:11" in text
    assert "{task" not in text


def test_pods_are_alike_and_get_the_index_from_kubernetes():
    """In every place that contains the index."""
    text = targets.render_spec("jobset", made(TO_RENDER), DIRECTORY, MACHINE, "")
    assert "--shard=$(JOB_COMPLETION_INDEX)/worker:$(JOB_COMPLETION_INDEX)" in text


@pytest.mark.parametrize(
    ("engine", "fields", "where"),
    [
        ("slurm", {"command": [*TRAIN, "{attempt}"]}, "command"),
        ("compose", {"workdir": "/out/{attempt}"}, "workdir"),
        ("jobset", {"workdir": "/out/{task.index}"}, "workdir"),
        ("jobset", {"env": {"A": "1{task.index}"}}, "env.A"),
    ],
)
def test_a_value_that_an_engine_does_not_know_is_refused(engine: str, fields: dict[str, Any], where: str):
    """Rather than left unexpanded."""
    (problem,) = targets.find_problems(engine, made({**TO_RENDER, **fields}), MACHINE)
    assert problem.where == where


def test_pods_have_the_variables_of_a_strategy():
    """The number of a pod comes from Kubernetes."""
    spec = made({**TO_RENDER, "command": TRAIN, "strategy": "jax"})
    assert targets.find_problems("jobset", spec, MACHINE) == []
    text = targets.render_spec("jobset", spec, DIRECTORY, MACHINE, "")
    assert "value: $(JOB_COMPLETION_INDEX)" in text or "job-completion-index" in text
