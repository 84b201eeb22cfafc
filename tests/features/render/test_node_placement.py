"""Tasks are placed on the nodes that a scheduler gives."""

from __future__ import annotations

from typing import Any

import pytest

from support.specs import made
from tflaunch.clusterspec.model import Spec
from tflaunch.features.render import node_placement

pytestmark = pytest.mark.unit


def spec(**fields: Any) -> Spec:
    return made({"cluster": {"worker": 1}, "command": ["x"], **fields})


def test_nodes_take_the_place_of_named_hosts() -> None:
    """They keep its ports, environment and GPUs, but not its connection settings."""
    named = spec(
        cluster={"chief": ["a:2222"], "worker": ["b", "a"]},
        hosts={"a": {"ssh": "ann@10.0.0.1", "env": {"X": "1"}, "gpus": 2}, "z": {"gpus": 1}},
        sidecars={"board": {"command": ["x"], "host": "b"}, "other": {"command": ["x"]}},
    )
    placed = node_placement.onto(named, ["n7", "n8", "n9"])
    assert str(placed.cluster["chief"][0]) == "n7:2222"
    assert [address.host for address in placed.cluster["worker"]] == ["n8", "n7"]
    assert (placed.hosts["n7"].env, placed.hosts["n7"].gpus, placed.hosts["n7"].ssh) == ({"X": "1"}, 2, None)
    assert set(placed.hosts) == {"n7"}
    assert {name: sidecar.host for name, sidecar in placed.sidecars.items()} == {"board": "n8", "other": "n7"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"cluster": {"worker": 4}}, 1),
        ({"cluster": {"worker": 4}, "slurm": {"nodes": 2}}, 2),
        ({"cluster": {"worker": 4}, "slurm": {"nodes": "2-4"}}, 2),
        ({"cluster": {"worker": ["a", "b"], "chief": ["c"]}, "slurm": {"nodes": 9}}, 3),
    ],
)
def test_how_many_nodes_a_spec_asks_for(fields: dict[str, Any], expected: int) -> None:
    """One per named host, else the number in the spec."""
    assert node_placement.nodes_wanted(spec(**fields)) == expected
