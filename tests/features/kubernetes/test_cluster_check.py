"""What a cluster tells before pods exist, in words of the spec. tests/kubernetes asks a real one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.specs import DIRECTORY, MACHINE, made
from tflaunch.discovery import prepare
from tflaunch.features.kubernetes import cluster_check
from tflaunch.features.kubernetes.quantities import amount, in_words
from tflaunch.plan import planner

pytestmark = pytest.mark.unit
RESOURCES = {"cpu": 2, "memory": "3Gi"}


def quota(hard: Mapping[str, str], used: Mapping[str, str] = {}) -> dict[str, Any]:
    return {"kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"hard": hard}, "status": {"used": used}}


def limit_range(**rule: Any) -> dict[str, Any]:
    return {"kind": "LimitRange", "metadata": {"name": "all"}, "spec": {"limits": [{"type": "Container", **rule}]}}


def node(labels: Mapping[str, str] = {}, **allocatable: str) -> dict[str, Any]:
    return {"kind": "Node", "metadata": {"labels": labels}, "spec": {}, "status": {"allocatable": allocatable}}


def problems(resources: dict[str, Any], *known: dict[str, Any], **fields: Any) -> list[str]:
    """Return the problems of two workers and a ps that asks for 1 GiB."""
    data = {
        "cluster": {"worker": 2, "ps": 1},
        "strategy": "none",
        "command": "python train.py",
        "workdir": "/code",
        "roles": {"ps": {"resources": {"memory": "1Gi"}}},
        "container": {"image": "train:1", "resources": resources},
        "kubernetes": fields,
    }
    spec, _ = prepare.complete("spec", Path(), made(data))
    cluster = planner.make_plan(spec, DIRECTORY, MACHINE).kubernetes
    assert cluster is not None
    rules, nodes = [[each for each in known if (each["kind"] == "Node") is is_node] for is_node in (False, True)]
    found = cluster_check.resource_problems(spec, cluster_check.groups(cluster), rules, nodes)
    return [f"{problem.where}: {problem.message}" for problem in found]


OF_ALL = "container.resources.memory: "


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (quota({"pods": "4"}, {"pods": "2"}), "cluster: asks for 3 pods, and the quota 'team' has 2 of 4 left"),
        (quota({"pods": "3"}), ""),
        (quota({"requests.memory": "6Gi"}),
         f"{OF_ALL}asks for 7Gi in all pods, and the quota 'team' has 6Gi of 6Gi left (requests.memory)"),
        (quota({"limits.cpu": "6000m"}), ""),
        (quota({"requests.storage": "0"}), ""),
        (limit_range(max={"memory": "2Gi"}), f"{OF_ALL}is 3Gi, and a LimitRange of the namespace allows at most 2Gi"),
        (limit_range(min={"memory": "2Gi"}),
         "roles.ps.resources.memory: is 1Gi, and a LimitRange of the namespace asks for at least 2Gi"),
        (node(cpu="4", memory="2Gi"), f"{OF_ALL}asks for 3Gi in one pod, and the largest node has 2Gi"),
        (node(cpu="4", memory="4Gi"), ""),
    ],
)  # fmt: skip
def test_what_pods_cannot_get_is_told_in_words_of_the_spec(rule: dict[str, Any], said: str) -> None:
    assert problems(RESOURCES, rule) == [said] * bool(said)


def test_a_quota_asks_for_what_the_spec_leaves_out_unless_the_namespace_gives_it() -> None:
    rule = quota({"limits.cpu": "6"})
    missing = "container.resources.cpu: is missing, and the quota 'team' asks every pod for it (limits.cpu)"
    assert problems({"memory": "3Gi"}, rule) == [missing]
    assert problems({"memory": "3Gi"}, rule, limit_range(default={"cpu": "1"})) == []


def test_gpus_and_labels_of_nodes_are_looked_for() -> None:
    here = node({"pool": "a"}, cpu="4", memory="8Gi")
    assert "container.resources.gpu: asks for 1 in one pod, and no node has any" in problems({"gpu": 1}, here)
    elsewhere = problems(RESOURCES, here, pod={"nodeSelector": {"pool": "b"}})
    assert "kubernetes.pod.nodeSelector: asks for a node with pool=b, and there is none" in elsewhere
    assert problems(RESOURCES, here, pod={"nodeSelector": {"pool": "a"}}) == []


def test_quantities() -> None:
    given: tuple[object, ...] = ("500m", "2", 3, "1.5Gi", "1e3", "4M")
    assert [amount(each) for each in given] == [0.5, 2, 3, 1.5 * 2**30, 1000, 4e6]
    assert [in_words(1.5 * 2**30, "memory"), in_words(12, "memory"), in_words(0.5, "cpu")] == ["1.5Gi", "12", "0.5"]
    with pytest.raises(TypeError):
        amount("many")
