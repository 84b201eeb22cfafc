"""When memory will be full: steady growth is found, and what starts or fills up is not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from tflaunch.features.memory.memory_growth import MemoryGrowth, seconds_left
from tflaunch_worker.features.memory.memory_series import MOST, MemorySeries

pytestmark = pytest.mark.unit

MIB = 2.0**20
HOUR = 3600.0


def first_rate(size: Callable[[float], float], room: float, seconds: float) -> tuple[float, float] | None:
    """Return when steady growth is found first in these seconds, and its rate; None if it is not."""
    growth = MemoryGrowth()
    for at in _moments(seconds):
        growth.add(at, size(at))
        rate = growth.rate(room - (size(at) - size(0.0)))
        if rate is not None:
            return at, rate
    return None


def _moments(seconds: float) -> Iterator[float]:
    return (float(number * 10) for number in range(int(seconds / 10)))


def noisy(spread: float) -> Callable[[], float]:
    """Return a source of noise with this spread in bytes."""
    chance = random.Random(7)
    return lambda: chance.gauss(0.0, spread)


@pytest.mark.parametrize(("per_minute", "room"), [(60, 2000), (600, 8000), (10, 2400)])
def test_a_leak_is_found_long_before_memory_is_full(per_minute: float, room: float) -> None:
    """Before a sixth of the time has passed, and its rate is right within a tenth."""
    noise = noisy(2 * MIB)
    found = first_rate(lambda at: 500 * MIB + per_minute * MIB * at / 60 + noise(), room * MIB, 4 * HOUR)
    assert found is not None
    at, rate = found
    assert at < max(room / per_minute * 60 / 6, 200)
    assert rate == pytest.approx(per_minute * MIB / 60, rel=0.1)


@pytest.mark.parametrize(
    "size",
    [
        lambda at: 500 * MIB + 3000 * MIB * (1 - 2.718 ** (-at / 120)),  # starts, ever slower
        lambda at: 500 * MIB + min(at, 50) * 40 * MIB,  # loads its data
        lambda at: 500 * MIB + 400 * MIB * (at // 600 % 2),  # evaluates every now and then
        lambda at: 500 * MIB + 200 * MIB * ((at / 60) ** 0.5),  # fragments
        lambda at: 2000 * MIB + 0.001 * MIB * at,  # grows, but not for days
    ],
)
def test_what_starts_or_fills_up_is_no_leak(size: Callable[[float], float]) -> None:
    """With room for hours."""
    noise = noisy(2 * MIB)
    assert first_rate(lambda at: size(at) + noise(), 20_000 * MIB, 2 * HOUR) is None


def test_a_leak_that_begins_later_is_found() -> None:
    """After an hour without growth."""
    found = first_rate(lambda at: 500 * MIB + max(at - HOUR, 0) * MIB, 4000 * MIB, 2 * HOUR)
    assert found is not None
    assert HOUR < found[0] < HOUR + 3000


def test_growth_that_has_ended_is_forgotten() -> None:
    """A buffer is full."""
    growth = MemoryGrowth()
    rates = []
    for at in _moments(3000):
        growth.add(at, 500 * MIB + min(at, 900) * MIB)
        rates.append(growth.rate(2000 * MIB))
    assert any(rates)
    assert rates[-1] is None


def test_earlier_points_count() -> None:
    """Those that the agent tells a new supervisor."""
    history = [(at - 3000.0, 500 * MIB + at * MIB) for at in _moments(600)]
    assert MemoryGrowth(history).rate(2000 * MIB) == pytest.approx(MIB, rel=0.05)
    assert MemoryGrowth().rate(2000 * MIB) is None


def test_the_tasks_of_a_host_fill_its_memory_together() -> None:
    """Nothing is said about more than twelve hours."""
    assert seconds_left(1000, [2.0, 3.0]) == 200
    assert seconds_left(1e9, [1.0]) is None
    assert seconds_left(1000, []) is None


def test_a_long_series_stays_short() -> None:
    """It keeps the first point and the last ones."""
    series = MemorySeries()
    for second in range(50_000):
        series.add(float(second), second)
    points = series.points()
    assert len(points) <= MOST
    assert points[0] == (0.0, 0)
    assert points[-10:] == [(float(second), second) for second in range(49_990, 50_000)]
    gaps = [later[0] - earlier[0] for earlier, later in pairwise(points)]
    assert max(gaps) < 10_000
