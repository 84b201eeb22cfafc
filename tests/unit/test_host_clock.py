"""Clocks of hosts, compared by messages that take time in transit."""

from __future__ import annotations

import random

import pytest

from tflaunch.agents.clock_sync import HostClock
from tflaunch.core.events import LONGEST_TIME

pytestmark = pytest.mark.unit


def test_a_clock_that_was_never_compared_is_taken_as_ours() -> None:
    """As for this machine."""
    assert HostClock().ours(7.0) == 7.0


def test_the_same_way_there_and_back_gives_the_moment_itself() -> None:
    """Regardless of the two clocks' values."""
    clock = HostClock()
    clock.compare(sent=100.0, theirs=5000.020, heard=100.040)
    assert clock.ours(5001.0) == pytest.approx(100.020 + 0.98)


def test_the_fastest_way_of_each_direction_counts() -> None:
    """Messages delayed in either direction do no harm."""
    chance, clock, ahead = random.Random(1), HostClock(), 4321.0
    for number in range(16):
        sent = 100.0 + number
        there = 0.010 + (0.0 if number == 3 else chance.uniform(0.005, 0.2))
        back = 0.010 + (0.0 if number == 11 else chance.uniform(0.005, 0.2))
        clock.compare(sent, sent + there + ahead, sent + there + back)
    assert clock.ours(150.0 + ahead) == pytest.approx(150.0, abs=1e-6)


def test_clocks_drift_so_that_old_comparisons_are_forgotten() -> None:
    """The fastest message of an hour ago has expired."""
    clock = HostClock()
    clock.compare(0.0, 1000.0, 0.0)
    for number in range(16):
        sent = 3600.0 + number
        clock.compare(sent, sent + 1000.5 + 0.001, sent + 0.002)
    assert clock.ours(5000.5) == pytest.approx(4000.0)


def test_a_converted_time_fits_into_an_event() -> None:
    """A host may tell any time that an event can have; the journal could not be read with a later one."""
    clock = HostClock()
    clock.compare(sent=100.0, theirs=50.0, heard=100.0)
    assert clock.ours(LONGEST_TIME) == LONGEST_TIME
    clock.compare(sent=100.0, theirs=350.0, heard=100.0)
    assert clock.ours(-LONGEST_TIME) == -LONGEST_TIME
