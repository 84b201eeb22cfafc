"""A spec with another number of workers: the first of them, or more local ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tflaunch.clusterspec.load import spec_from_data
from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.values import LOCALHOST
from tflaunch.errors import SpecError
from tflaunch.features.bench.scaled_spec import with_workers

pytestmark = pytest.mark.unit

HERE = {LOCALHOST}


def spec(cluster: dict[str, Any], **fields: Any) -> Spec:
    """Return a spec."""
    return spec_from_data("job.json", {"name": "job", "cluster": cluster, "command": ["true"], **fields}, None, Path())


def addresses(scaled: Spec) -> dict[str, list[str]]:
    """Return the addresses of each role."""
    return {role: [str(address) for address in found] for role, found in scaled.cluster.items()}


AUTO = ["localhost:auto"]


@pytest.mark.parametrize(
    ("cluster", "count", "expected"),
    [
        ({"worker": ["a", "b", "c"]}, 2, {"worker": ["a:auto", "b:auto"]}),
        ({"worker": 2}, 4, {"worker": AUTO * 4}),
        ({"worker": ["localhost:2222"]}, 2, {"worker": ["localhost:2222", *AUTO]}),
        ({"chief": 1, "worker": 2}, 1, {"chief": AUTO}),
        ({"chief": 1}, 2, {"chief": AUTO, "worker": AUTO}),
        ({"chief": 1, "worker": 2, "ps": 1}, 1, {"chief": AUTO, "worker": AUTO, "ps": AUTO}),
    ],
)
def test_a_spec_gets_its_first_workers_or_more_local_ones(
    cluster: dict[str, Any], count: int, expected: dict[str, list[str]]
) -> None:
    assert addresses(with_workers("job.json", spec(cluster), count, HERE)) == expected
    if "ps" not in cluster:
        assert addresses(with_workers("job.json", spec(cluster, strategy="none"), count, HERE)) == expected


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"worker": ["a", "b"]}, "cluster.worker: has 2 of the 3 workers of --workers; measure at most 2"),
        ({"chief": ["a"]}, "cluster.worker: has 1 of the 3 workers"),
        ({"chief": 1, "ps": 1}, "cluster: has no worker"),
    ],
)
def test_workers_whose_hosts_are_not_known_are_refused(cluster: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as raised:
        with_workers("job.json", spec(cluster), 3, HERE)
    assert message in str(raised.value)


def test_what_is_not_measured_is_left_out() -> None:
    hosts = {"*": {"python": "/p"}, "a": {"gpus": 1}, "b": {"gpus": 1}, "c": {}}
    fields = {"hosts": hosts, "spares": ["c"], "collect": ["*"], "timeouts": {"deadline": 5, "stall": 60}}
    scaled = with_workers("job.json", spec({"worker": ["a", "b"]}, **fields), 1, HERE)
    assert scaled.name == "job-1w"
    assert list(scaled.hosts) == ["*", "a"]
    assert (scaled.restart.max, scaled.spares, scaled.collect) == (0, 0, ())
    assert (scaled.timeouts.deadline, scaled.timeouts.stall) == (None, 60)
