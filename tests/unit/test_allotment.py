"""Placement of tasks on the hosts that were found."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.specs import made
from tflaunch.clusterspec.model import Spec
from tflaunch.plan import placement

pytestmark = pytest.mark.unit


def spec(**fields: Any) -> Spec:
    """Return a spec with a command."""
    return made({"cluster": {"worker": 1}, "command": ["x"], **fields})


def hosts(spec: Spec, role: str = "worker") -> list[str]:
    """Return the hosts of a role's tasks."""
    return [address.host for address in spec.cluster[role]]


@pytest.mark.parametrize(
    ("tasks", "slots", "expected"),
    [
        (4, "ab", "aabb"),
        (3, "ab", "aab"),
        (2, "abcd", "ab"),
        (2, "aabb", "ab"),
        (3, "aab", "aab"),
        (6, "aab", "aaaabb"),
    ],
)
def test_counted_tasks_are_spread_in_blocks(tasks: int, slots: str, expected: str) -> None:
    """Each host gets one task while hosts outnumber tasks; else tasks go by slots."""
    assert hosts(placement.spread(spec(cluster={"worker": tasks}), slots)) == list(expected)


def test_tasks_that_have_a_host_keep_it() -> None:
    """In the order of roles, whatever the order in the spec."""
    mixed = spec(cluster={"ps": 1, "worker": ["h9", "localhost"], "chief": 1})
    placed = placement.spread(mixed, ["a", "b", "c"])
    assert (hosts(placed, "chief"), hosts(placed), hosts(placed, "ps")) == (["a"], ["h9", "b"], ["c"])
    assert list(placed.cluster) == ["ps", "worker", "chief"]


@given(st.integers(1, 60), st.lists(st.sampled_from("abcdef"), min_size=1, max_size=20))
def test_a_spread_is_even(tasks: int, slots: list[str]) -> None:
    placed = hosts(placement.spread(spec(cluster={"worker": tasks}), slots))
    assert len(placed) == tasks
    per_slot = [placed.count(host) / slots.count(host) for host in set(slots)]
    if tasks >= len(set(slots)):
        assert max(per_slot) - min(per_slot) < 2
    else:
        assert max(placed.count(host) for host in set(slots)) == 1


def test_nodes_take_the_place_of_named_hosts() -> None:
    """They keep its ports, environment and GPUs, but not its connection settings."""
    named = spec(
        cluster={"chief": ["a:2222"], "worker": ["b", "a"]},
        hosts={"a": {"ssh": "ann@10.0.0.1", "env": {"X": "1"}, "gpus": 2}, "z": {"gpus": 1}},
        sidecars={"board": {"command": ["x"], "host": "b"}, "other": {"command": ["x"]}},
    )
    placed = placement.onto(named, ["n7", "n8", "n9"])
    assert str(placed.cluster["chief"][0]) == "n7:2222"
    assert hosts(placed) == ["n8", "n7"]
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
    assert placement.nodes_wanted(spec(**fields)) == expected
