"""Durations in tables and in sentences."""

from __future__ import annotations

import pytest

from tflaunch.explain import figures, wording

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("seconds", "figure", "words"),
    [
        (-1.0, "0s", "0.0 s"),
        (0.44, "0s", "0.4 s"),
        (12.9, "12s", "12 s"),
        (192.0, "3m12s", "3m12s"),
        (7500.0, "2h05m", "2h05m"),
        (273_600.0, "3d04h", "3d04h"),
    ],
)
def test_a_duration_has_two_units(seconds: float, figure: str, words: str) -> None:
    """In a sentence also tenths of a few seconds, and a blank before the unit of seconds."""
    assert (figures.duration(seconds), wording.lasted(seconds)) == (figure, words)
