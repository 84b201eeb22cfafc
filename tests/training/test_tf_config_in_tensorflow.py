"""How TensorFlow itself interprets the TF_CONFIG that tflaunch compiles; no strategy is created."""

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from support.specs import DIRECTORY, MACHINE, made
from tflaunch.clusterspec.values import ROLES, STRATEGIES
from tflaunch.plan import attempts, lint, planner
from tflaunch.plan.model import Plan
from tflaunch.plan.tf_config import has_cluster

pytestmark = pytest.mark.tensorflow

FIRST_PORT = 20_001


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
    plan = planner.make_plan(made({"command": ["python", "train.py"], **data}), DIRECTORY, MACHINE)
    ports = {task.task: FIRST_PORT + number for number, task in enumerate(plan.tasks)}
    return attempts.with_tf_configs(attempts.resolve(plan, ports))


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
    """Each finds itself and all others; exactly one training task is chief, and the ids are 0, 1, 2, ... without a gap.

    Through the resolver that every strategy uses by default; the checks are those before a port is opened.
    """
    for data in good_clusters(strategy):
        plan, chiefs, ids = plan_of(data), [], []
        for task in plan.tasks:
            monkeypatch.setenv("TF_CONFIG", task.env["TF_CONFIG"])
            resolver, util = tensorflow.resolver(), tensorflow.util
            me = (resolver.cluster_spec(), resolver.task_type, resolver.task_id)
            assert f"{resolver.task_type}:{resolver.task_id}" == task.task
            assert resolver.rpc_layer in (None, "grpc")
            for role, addresses in me[0].as_dict().items():
                assert addresses == [str(other.address) for other in plan.tasks if other.role == role], data
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
