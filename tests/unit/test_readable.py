"""Durations, ages and signals, as people read them."""

from __future__ import annotations

import pytest

from support.readable import AGES, DURATIONS, SIGNALS
from tflaunch_worker.readable import age_words, duration_words, exit_words, signal_name

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("seconds", "words"), DURATIONS.items())
def test_a_duration_has_at_most_two_units(seconds: float, words: str) -> None:
    """Tenths below ten seconds, and nothing that is zero."""
    assert duration_words(seconds) == words


@pytest.mark.parametrize(("seconds", "words"), AGES.items())
def test_an_age_has_one_unit(seconds: float, words: str) -> None:
    """At least two of it, unless they are seconds."""
    assert age_words(seconds) == words


@pytest.mark.parametrize(("number", "name"), SIGNALS.items())
def test_a_signal_has_its_name(number: int, name: str) -> None:
    assert signal_name(number) == name


@pytest.mark.parametrize(
    ("code", "words"), [(0, "exited with code 0"), (7, "exited with code 7"), (-9, "was killed by SIGKILL")]
)
def test_an_exit_is_a_code_or_a_signal(code: int, words: str) -> None:
    assert exit_words(code) == words
