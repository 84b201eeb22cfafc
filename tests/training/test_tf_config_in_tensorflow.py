"""How TensorFlow itself interprets the TF_CONFIG that tflaunch compiles; no strategy is created."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from support.specs import DIRECTORY, MACHINE, made
from tflaunch.clusterspec.values import ROLES, STRATEGIES
from tflaunch.plan import attempts, lint, planner
from tflaunch.plan.model import Plan
from tflaunch.plan.tf_config import has_cluster

pytestmark = pytest.mark.tensorflow

FIRST_PORT = 20_001
CHIEF, WORKER, PS = (f"/job:{role}/replica:0/task:0" for role in ("chief", "worker", "ps"))


class Role(NamedTuple):
    """A task's role as TensorFlow sees it; None where TensorFlow does not query it."""

    is_chief: bool
    worker_count: int | None
    id_in_cluster: int | None
    collective_leader: str
    coordination_leader: str | None


MWMS, PSS = "multi_worker_mirrored", "parameter_server"
WORKERS = {"worker": 3}
CHIEF_AND_WORKERS = {"chief": 1, "worker": 2}
WITH_EVALUATOR = {"worker": 2, "evaluator": 1}
SERVERS = {"chief": 1, "worker": 2, "ps": 2}
SERVERS_AND_EVALUATOR = {**SERVERS, "evaluator": 1}

CASES = [
    (MWMS, {"worker": 1}, "worker:0", Role(True, 1, 0, WORKER, WORKER)),
    (MWMS, WORKERS, "worker:2", Role(False, 3, 2, WORKER, WORKER)),
    (MWMS, CHIEF_AND_WORKERS, "chief:0", Role(True, 3, 0, CHIEF, CHIEF)),
    (MWMS, CHIEF_AND_WORKERS, "worker:1", Role(False, 3, 2, CHIEF, CHIEF)),
    (MWMS, WITH_EVALUATOR, "evaluator:0", Role(True, 1, 0, "", None)),
    (PSS, SERVERS, "chief:0", Role(True, 3, 0, CHIEF, PS)),
    (PSS, SERVERS, "worker:1", Role(False, 3, 2, CHIEF, PS)),
    (PSS, SERVERS, "ps:1", Role(False, None, None, CHIEF, PS)),
    (PSS, SERVERS_AND_EVALUATOR, "evaluator:0", Role(True, 1, 0, "", None)),
    ("none", SERVERS_AND_EVALUATOR, "worker:1", Role(False, 3, 2, CHIEF, PS)),
    ("none", {"worker": 2}, "worker:1", Role(False, 2, 1, WORKER, WORKER)),
]
IDS = [
    f"{strategy}-{'+'.join(f'{count}_{role}' for role, count in cluster.items())}-{task}"
    for strategy, cluster, task, _ in CASES
]


@pytest.fixture(scope="module")
def tensorflow() -> SimpleNamespace:
    """TensorFlow's own reader and checks of TF_CONFIG; CI must have them."""
    import tensorflow as tf
    from tensorflow.python.distribute import multi_worker_util

    return SimpleNamespace(
        resolver=tf.distribute.cluster_resolver.TFConfigClusterResolver,
        util=multi_worker_util,
        validate=multi_worker_util._validate_cluster_spec,  # noqa: SLF001 - TensorFlow's own check has no other name
    )


def plan_of(data: dict[str, Any]) -> Plan:
    """A plan in which every task has a port and a TF_CONFIG."""
    plan = planner.make_plan(made({"command": ["python", "train.py"], **data}), DIRECTORY, MACHINE)
    ports = {task.task: FIRST_PORT + number for number, task in enumerate(plan.tasks)}
    return attempts.with_tf_configs(attempts.resolve(plan, ports))


@pytest.mark.parametrize(("strategy", "cluster", "task", "role"), CASES, ids=IDS)
def test_tensorflow_reads_who_the_task_is_who_leads_and_where_all_others_are(
    tensorflow: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    cluster: dict[str, int],
    task: str,
    role: Role,
):
    """Through the resolver that every strategy uses by default; the checks are those before a port is opened."""
    plan = plan_of({"cluster": cluster, "strategy": strategy})
    monkeypatch.setenv("TF_CONFIG", plan.find(task).env["TF_CONFIG"])
    resolver = tensorflow.resolver()
    seen = resolver.cluster_spec().as_dict()
    assert (resolver.task_type, resolver.task_id) == (task.split(":", maxsplit=1)[0], int(task.split(":")[1]))
    assert resolver.rpc_layer in (None, "grpc")
    for name, addresses in seen.items():
        assert addresses == [str(other.address) for other in plan.tasks if other.role == name]
    assert ("evaluator" in seen) == (task == "evaluator:0" or (strategy == "none" and "evaluator" in cluster))
    assert set(seen) | {"evaluator"} == set(cluster) | {"evaluator"}
    util = tensorflow.util
    spec = util.normalize_cluster_spec(resolver.cluster_spec())
    me = (spec, resolver.task_type, resolver.task_id)
    tensorflow.validate(*me)
    assert util.is_chief(*me) == role.is_chief
    assert util.collective_leader(*me) == role.collective_leader
    if role.coordination_leader is not None:
        assert util.coordination_leader(spec) == role.coordination_leader
    if role.worker_count is not None:
        assert util.worker_count(spec, resolver.task_type) == role.worker_count
        assert util.id_in_cluster(*me) == role.id_in_cluster


def good_clusters(strategy: str) -> Iterator[dict[str, Any]]:
    """Every spec with up to two tasks per role in which lint finds no error."""
    for counts in itertools.product(range(3), repeat=len(ROLES)):
        cluster = {role: count for role, count in zip(ROLES, counts, strict=True) if count}
        data = {"cluster": cluster, "strategy": strategy, "command": ["python", "train.py"]}
        if not any(problem.severity == "error" for problem in lint.check_spec(made(data))):
            yield data


@pytest.mark.parametrize("strategy", [strategy for strategy in STRATEGIES if has_cluster(strategy)])
def test_whatever_lint_lets_pass_tensorflow_accepts_in_every_task(
    tensorflow: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, strategy: str
):
    """Exactly one training task is chief, and the ids are 0, 1, 2, ... without a gap."""
    for data in good_clusters(strategy):
        chiefs, ids = [], []
        for task in plan_of(data).tasks:
            monkeypatch.setenv("TF_CONFIG", task.env["TF_CONFIG"])
            resolver, util = tensorflow.resolver(), tensorflow.util
            me = (resolver.cluster_spec(), resolver.task_type, resolver.task_id)
            tensorflow.validate(*me)
            if task.role in ("chief", "worker"):
                chiefs += [task.task] * util.is_chief(*me)
                ids.append(util.id_in_cluster(*me))
        assert len(chiefs) == bool(ids), data
        assert ids == list(range(len(ids))), data


@pytest.mark.parametrize("role", ["master", "tensorboard"])
def test_a_role_that_lint_refuses_would_be_refused_by_tensorflow_too(tensorflow: SimpleNamespace, role: str):
    with pytest.raises(ValueError, match="Disallowed task type"):
        tensorflow.validate({role: ["alpha:1"], "worker": ["beta:1"]}, "worker", 0)
