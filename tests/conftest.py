"""A place for each test to run tflaunch in; nothing may be left running in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from launch import Launch

# How long an example takes says nothing on a shared machine.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Run tflaunch in a directory of its own, and check that nothing is left when the test is over."""
    place = Launch(tmp_path)
    try:
        yield place
        assert not (left := place.survivors()), f"left running: {left}"
    finally:
        place.end()
