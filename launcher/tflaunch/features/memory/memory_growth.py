"""A forecast of full memory on a host, from the growth of its tasks. Pure.

Memory grows while a program starts, and a cache or a shuffle buffer fills. Growth counts as steady if it goes on at the
same rate for a time that is long compared with what is predicted from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from tflaunch_worker.features.memory.memory_series import MemorySeries

LONGEST = 43_200.0
"""Seconds: what is further in the future is not predicted."""

_WARM_UP = 60.0  # seconds after the first measurement that do not count
_SHORTEST, _PART = 30.0, 20.0  # seconds of growth, and the part of the prediction that they must be
_FEWEST = 12  # points
_PARTS = 4
_STEADY = 0.8  # of the mean growth, that each part must reach
_LEAST_GROWTH, _LEAST_SHARE = 32 * 2**20, 0.03  # bytes, and of the memory in use


class MemoryGrowth:
    """The memory of one attempt of a task."""

    def __init__(self, history: Sequence[tuple[float, float]] = ()) -> None:
        """Begin with earlier points: seconds of the supervisor's clock, and bytes."""
        self._series = MemorySeries()
        for at, size in sorted(history):  # from an agent, in any order
            self.add(at, size)

    def add(self, at: float, size: float) -> None:
        """Add a measurement."""
        points = self._series.points()
        if not points or at > points[-1][0]:
            self._series.add(at, size)

    def rate(self, room: float) -> float | None:
        """Return the steady growth in bytes/s; None if unsteady or if ``room`` lasts long.

        Args:
            room: how many bytes are left.
        """
        points = self._series.points()
        if not points:
            return None
        points = [point for point in points if point[0] >= points[0][0] + _WARM_UP]
        for first in (0, len(points) // 2, len(points) * 3 // 4):  # a leak may begin at any time
            rate = _steady_rate(points[first:], room)
            if rate is not None:
                return rate
        return None


def seconds_left(room: float, rates: Sequence[float]) -> float | None:
    """Return the seconds until memory is full at these rates; None beyond `LONGEST`."""
    left = room / sum(rates) if rates else float("inf")
    return left if left <= LONGEST else None


def _steady_rate(points: Sequence[tuple[float, float]], room: float) -> float | None:
    if len(points) < _FEWEST:
        return None
    span = points[-1][0] - points[0][0]
    rate = _slope(points)
    if rate <= 0 or room / rate > LONGEST or span < max(_SHORTEST, room / rate / _PART):
        return None
    if rate * span < max(_LEAST_GROWTH, _LEAST_SHARE * points[-1][1]):
        return None
    return rate if _is_steady(points, span, rate) else None


def _is_steady(points: Sequence[tuple[float, float]], span: float, rate: float) -> bool:
    """Whether each part of the time has its part of the growth."""
    began = points[0][0]
    edges = [_size_at(points, began + span * number / _PARTS) for number in range(_PARTS + 1)]
    return all(later - earlier >= _STEADY * rate * span / _PARTS for earlier, later in pairwise(edges))


def _size_at(points: Sequence[tuple[float, float]], at: float) -> float:
    """Interpolate the size at a moment, between medians of three points around it."""
    place = next((number for number, point in enumerate(points) if point[0] >= at), len(points) - 1)
    (then, before), (later, after) = _smooth(points, max(place - 1, 0)), _smooth(points, place)
    return after if later <= then else before + (after - before) * (at - then) / (later - then)


def _smooth(points: Sequence[tuple[float, float]], place: int) -> tuple[float, float]:
    near = sorted(size for _, size in points[max(place - 1, 0) : place + 2])
    return points[place][0], near[1] if len(near) == 3 else points[place][1]


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the median slope between points half a series apart, robust to outliers."""
    half = len(points) // 2
    return median(
        (later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in zip(points, points[half:], strict=False)
    )
