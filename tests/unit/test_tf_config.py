"""The TF_CONFIG of each task."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tflaunch.clusterspec.values import ROLES, STRATEGIES
from tflaunch.plan.tf_config import compile_tf_config, has_cluster, members

pytestmark = pytest.mark.unit

CHIEF, WORKERS, PS, EVALUATOR = ["c:1"], ["w0:1", "w1:1"], ["p0:1", "p1:1"], ["e:1"]
ALL_ROLES = {"chief": CHIEF, "worker": WORKERS, "ps": PS, "evaluator": EVALUATOR}


def compiled(strategy: str, addresses: dict[str, list[str]], role: str, index: int) -> dict[str, Any]:
    """Return the parsed TF_CONFIG."""
    text = compile_tf_config(strategy, addresses, role, index)
    assert text is not None
    return json.loads(text)


@pytest.mark.parametrize(
    ("strategy", "declared", "role", "index", "cluster"),
    [
        pytest.param(
            *("multi_worker_mirrored", {"worker": WORKERS}, "worker", 1, {"worker": WORKERS}),
            id="workers-only",
        ),
        pytest.param(
            *("multi_worker_mirrored", {"worker": ["w0:1"]}, "worker", 0, {"worker": ["w0:1"]}),
            id="one-worker",
        ),
        pytest.param(
            "multi_worker_mirrored",
            {"chief": CHIEF, "worker": WORKERS},
            *("worker", 0, {"chief": CHIEF, "worker": WORKERS}),
            id="chief-and-workers-worker",
        ),
        pytest.param(
            "multi_worker_mirrored",
            {"chief": CHIEF, "worker": WORKERS},
            *("chief", 0, {"chief": CHIEF, "worker": WORKERS}),
            id="chief-and-workers-chief",
        ),
        pytest.param(
            "multi_worker_mirrored",
            {"worker": WORKERS, "evaluator": EVALUATOR},
            *("worker", 1, {"worker": WORKERS}),
            id="worker-does-not-see-the-evaluator",
        ),
        pytest.param(
            "multi_worker_mirrored",
            {"worker": WORKERS, "evaluator": EVALUATOR},
            *("evaluator", 0, {"worker": WORKERS, "evaluator": EVALUATOR}),
            id="evaluator-sees-itself",
        ),
        pytest.param(
            "multi_worker_mirrored",
            ALL_ROLES,
            *("worker", 0, {"chief": CHIEF, "worker": WORKERS}),
            id="never-a-ps-in-a-mirrored-cluster",
        ),
        pytest.param(
            *("parameter_server", ALL_ROLES, "chief", 0, {"chief": CHIEF, "worker": WORKERS, "ps": PS}),
            id="parameter-server-chief",
        ),
        pytest.param(
            *("parameter_server", ALL_ROLES, "worker", 1, {"chief": CHIEF, "worker": WORKERS, "ps": PS}),
            id="parameter-server-worker",
        ),
        pytest.param(
            *("parameter_server", ALL_ROLES, "ps", 1, {"chief": CHIEF, "worker": WORKERS, "ps": PS}),
            id="parameter-server-ps",
        ),
        pytest.param(*("parameter_server", ALL_ROLES, "evaluator", 0, ALL_ROLES), id="parameter-server-evaluator"),
        pytest.param(*("none", ALL_ROLES, "worker", 1, ALL_ROLES), id="none-is-the-cluster-as-written"),
        pytest.param(*("none", {"ps": PS}, "ps", 0, {"ps": PS}), id="none-adds-no-role"),
    ],
)
def test_a_task_finds_the_cluster_of_its_strategy_and_itself(
    strategy: str, declared: dict[str, list[str]], role: str, index: int, cluster: dict[str, Any]
):
    """The complete TF_CONFIG: cluster and task, and nothing else."""
    assert compiled(strategy, declared, role, index) == {"cluster": cluster, "task": {"type": role, "index": index}}


@pytest.mark.parametrize("strategy", ["mirrored", "tpu"])
@pytest.mark.parametrize("role", ROLES)
def test_a_strategy_of_one_process_has_no_tf_config(strategy: str, role: str):
    """It must not see a cluster."""
    assert compile_tf_config(strategy, ALL_ROLES, role, 0) is None
    assert not has_cluster(strategy)
    assert members(strategy) == ()


def test_the_text_is_compact_json_with_roles_in_a_fixed_order_and_an_integer_index():
    """The same cluster gives the same bytes, however the spec orders it."""
    shuffled = {"ps": ["p:3"], "worker": ["w:2"], "chief": ["c:1"]}
    assert compile_tf_config("parameter_server", shuffled, "worker", 0) == (
        '{"cluster":{"chief":["c:1"],"worker":["w:2"],"ps":["p:3"]},"task":{"type":"worker","index":0}}'
    )


@pytest.mark.parametrize("strategy", [strategy for strategy in STRATEGIES if has_cluster(strategy)])
def test_all_tasks_but_the_evaluator_see_the_same_cluster(strategy: str):
    """Otherwise they would never agree on the leader."""
    roles = [role for role in members(strategy) if role != "evaluator"]
    clusters = [
        compiled(strategy, ALL_ROLES, role, i)["cluster"] for role in roles for i in range(len(ALL_ROLES[role]))
    ]
    assert all(cluster == clusters[0] for cluster in clusters)


def test_only_the_four_roles_of_tensorflow_stand_in_the_cluster():
    """A sidecar with an address is not included."""
    addresses = {"worker": WORKERS, "tensorboard": ["t:6006"]}
    assert compiled("none", addresses, "worker", 0)["cluster"] == {"worker": WORKERS}


@pytest.mark.parametrize("strategy", [strategy for strategy in STRATEGIES if has_cluster(strategy)])
@pytest.mark.parametrize("role", ROLES)
def test_the_text_is_that_of_one_json_object(strategy: str, role: str):
    """Compact, as users compare it."""
    text = compile_tf_config(strategy, ALL_ROLES, role, 1)
    assert text == json.dumps(compiled(strategy, ALL_ROLES, role, 1), separators=(",", ":"))
