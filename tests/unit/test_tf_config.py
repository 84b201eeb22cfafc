"""The TF_CONFIG of each task."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tflaunch.clusterspec.values import ROLES
from tflaunch.plan.tf_config import compile_tf_config, has_cluster, members

pytestmark = pytest.mark.unit

CHIEF, WORKERS, PS, EVALUATOR = ["c:1"], ["w0:1", "w1:1"], ["p0:1", "p1:1"], ["e:1"]
MIRRORED = {"chief": CHIEF, "worker": WORKERS}
EVALUATED = {"worker": WORKERS, "evaluator": EVALUATOR}
SERVED = {**MIRRORED, "ps": PS}
ALL_ROLES = {**SERVED, "evaluator": EVALUATOR}


@pytest.mark.parametrize(
    ("strategy", "declared", "task", "cluster"),
    [
        ("multi_worker_mirrored", {"worker": WORKERS}, ("worker", 1), {"worker": WORKERS}),
        ("multi_worker_mirrored", MIRRORED, ("worker", 0), MIRRORED),
        ("multi_worker_mirrored", MIRRORED, ("chief", 0), MIRRORED),
        ("multi_worker_mirrored", EVALUATED, ("worker", 1), {"worker": WORKERS}),  # it does not see the evaluator
        ("multi_worker_mirrored", EVALUATED, ("evaluator", 0), EVALUATED),
        ("multi_worker_mirrored", ALL_ROLES, ("worker", 0), MIRRORED),  # which has never a ps
        *(("parameter_server", ALL_ROLES, task, SERVED) for task in (("chief", 0), ("worker", 1), ("ps", 1))),
        ("parameter_server", ALL_ROLES, ("evaluator", 0), ALL_ROLES),
        ("none", ALL_ROLES, ("worker", 1), ALL_ROLES),
        ("none", {"ps": PS}, ("ps", 0), {"ps": PS}),
        ("none", {"worker": WORKERS, "tensorboard": ["t:6006"]}, ("worker", 0), {"worker": WORKERS}),  # no sidecar
    ],
)
def test_a_task_finds_the_cluster_of_its_strategy_and_itself(
    strategy: str, declared: dict[str, list[str]], task: tuple[str, int], cluster: dict[str, Any]
):
    """As compact JSON, whose roles have a fixed order, however the spec orders them."""
    (role, index), shuffled = task, dict(reversed(declared.items()))
    whole = {"cluster": cluster, "task": {"type": role, "index": index}}
    assert compile_tf_config(strategy, shuffled, role, index) == json.dumps(whole, separators=(",", ":"))


@pytest.mark.parametrize("strategy", ["mirrored", "tpu"])
@pytest.mark.parametrize("role", ROLES)
def test_a_strategy_of_one_process_has_no_tf_config(strategy: str, role: str):
    assert compile_tf_config(strategy, ALL_ROLES, role, 0) is None
    assert not has_cluster(strategy)
    assert members(strategy) == ()
