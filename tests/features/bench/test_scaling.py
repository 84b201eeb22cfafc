"""How a training scales, from figures alone, and how that is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tflaunch.features.bench import scaling
from tflaunch.features.bench.scaling import ScaledRun
from tflaunch.features.bench.step_watch import Report, StepWatcher, Wanted

pytestmark = pytest.mark.unit


def runs(
    first: float | None, last: float | None, speed: float = 9.0, *, is_synchronous: bool = True
) -> list[ScaledRun]:
    """Return a run of one worker with 10 steps per second and examples in a step, and one of two workers."""
    made: list[ScaledRun] = []
    for workers, examples, each in ((1, first, 10.0), (2, last, speed)):
        product = None if examples is None else examples * each
        run = ScaledRun(workers, f"job-{workers}w-1", each * 10, 10.0, each, examples, product, 5.0, is_synchronous)
        made.append(scaling.compare(run, made[0]) if made else run)
    return made


@pytest.mark.parametrize(
    ("first", "last", "speed_up", "efficiency", "kind"),
    [
        (32, 64, 1.8, 0.9, "weak"),
        (64, 64, 0.9, 0.45, "strong"),
        (32, 40, 1.125, 0.5625, None),
        (None, None, 0.9, None, None),
        (32, None, 0.9, None, None),
    ],
)
def test_efficiency_is_the_speed_up_per_worker(
    first: float | None, last: float | None, speed_up: float, efficiency: float | None, kind: str | None
) -> None:
    made = runs(first, last)
    assert made[1].speed_up == pytest.approx(speed_up)
    assert made[1].efficiency == (None if efficiency is None else pytest.approx(efficiency))
    assert scaling.scaling_of(made) == kind


def test_a_step_of_parameter_servers_is_one_of_a_single_worker() -> None:
    made = runs(64, 64, 18.0, is_synchronous=False)
    assert (made[1].speed_up, made[1].efficiency) == (pytest.approx(1.8), pytest.approx(0.9))
    assert scaling.scaling_of(made) is None


def test_a_chart_shows_what_is_missing_to_the_ideal() -> None:
    assert scaling.text_of(runs(64, 64, 15.0)).splitlines() == [
        "WORKERS  STEPS/S  EXAMPLES/S  SPEED-UP  PER WORKER  START-UP",
        "1        10.00    640.0       1.00      100%        5 s",
        "2        15.00    960.0       1.50      75%         5 s",
        "",
        "examples/s: measured █, missing to the ideal ░",
        f"1  {'█' * 20:<40}  640.0",
        f"2  {'█' * 30 + '░' * 10}  960.0",
        "",
        "strong scaling: the batch of all workers together stays the same",
    ]


def test_without_examples_steps_are_compared_and_the_ideal_is_unknown() -> None:
    table, _, row, _, unit, _, bar, _, note = scaling.text_of(runs(None, 64, 5.0)).splitlines()
    assert row == "2        5.000    320.0       0.50      -           5 s"
    assert table.startswith("WORKERS")
    assert unit.startswith("steps/s")
    assert bar == f"2  {'█' * 20:<40}  5.000"
    assert note.startswith("SPEED-UP is that of steps; for examples/s, give --batch N")


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
def test_a_measurement_begins_after_the_warm_up(
    steps: list[int], has_ended: bool, measured: tuple[int, int] | None
) -> None:
    watcher = StepWatcher(Path("job-1"), Wanted(steps=50, warm_up=10, limit=60))
    watcher.reports = [Report(step, step / 10) for step in steps]
    watcher.has_ended = has_ended
    ends = watcher.measured()
    assert (ends and (ends[0].step, ends[1].step)) == measured
