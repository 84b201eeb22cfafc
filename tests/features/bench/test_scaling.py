"""How a training scales, from figures alone, how that is shown, and a spec with another number of workers."""

from pathlib import Path
from typing import Any

import pytest

from tflaunch.clusterspec.load import spec_from_data
from tflaunch.clusterspec.model import Spec
from tflaunch.clusterspec.values import LOCALHOST
from tflaunch.errors import SpecError
from tflaunch.features.bench import scaling
from tflaunch.features.bench.scaling import ScaledRun, with_workers
from tflaunch.features.bench.scaling_runs import Report, measured_part


def runs(first: float | None, last: float | None, speed: float = 9, *, is_synchronous: bool = True) -> list[ScaledRun]:
    """Return a run of one worker with 10 steps per second and examples in a step, and one of two workers."""
    made: list[ScaledRun] = []
    for workers, examples, each in ((1, first, 10.0), (2, last, speed)):
        product = None if examples is None else examples * each
        run = ScaledRun(workers, f"job-{workers}w-1", each * 10, 10.0, each, examples, product, 5.0, is_synchronous)
        made.append(scaling.compare(run, made[0]) if made else run)
    return made


@pytest.mark.parametrize(
    ("first", "last", "speed_up", "efficiency"),
    [(32, 64, 1.8, 0.9), (64, 64, 0.9, 0.45), (32, 40, 1.125, 0.5625), (None, None, 0.9, None), (32, None, 0.9, None)],
)
def test_efficiency_is_the_speed_up_per_worker(
    first: float | None, last: float | None, speed_up: float, efficiency: float | None
) -> None:
    made = runs(first, last)
    assert made[1].speed_up == pytest.approx(speed_up)
    assert made[1].efficiency == (None if efficiency is None else pytest.approx(efficiency))
    made = runs(64, 64, 18.0, is_synchronous=False)  # a step of parameter servers is one of a single worker
    assert (made[1].speed_up, made[1].efficiency) == (pytest.approx(1.8), pytest.approx(0.9))


def test_the_table_has_a_line_for_each_run() -> None:
    assert scaling.text_of(runs(64, 64, 15.0)).splitlines() == [
        "WORKERS  STEPS/S  EXAMPLES/S  SPEED-UP  PER WORKER  START-UP",
        "1        10.00    640.0       1.00      100%        5 s",
        "2        15.00    960.0       1.50      75%         5 s",
    ]
    without = scaling.text_of(runs(None, 64, 5.0)).splitlines()
    assert without[-1] == "2        5.000    320.0       0.50      -           5 s"


@pytest.mark.parametrize(
    ("steps", "has_ended", "measured"),
    [
        ([], False, None),
        ([1, 5], False, None),
        ([1, 5, 11], False, None),
        ([1, 5, 11, 20], False, (11, 20)),
        ([1, 5], True, (1, 5)),
        ([1, 5, 11], True, (1, 11)),
        ([1, 5, 11, 20], True, (11, 20)),
        ([1], True, None),
    ],
)
def test_measuring_begins_after_a_warm_up(steps: list[int], has_ended: bool, measured: tuple[int, int] | None) -> None:
    ends = measured_part([Report(step, step / 10) for step in steps], 10, has_ended)
    assert (ends and (ends[0].step, ends[1].step)) == measured


HERE = {LOCALHOST}


def spec(cluster: dict[str, Any], **fields: Any) -> Spec:
    return spec_from_data("job.json", {"name": "job", "cluster": cluster, "command": ["true"], **fields}, None, Path())


def addresses(scaled: Spec) -> dict[str, list[str]]:
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
