"""Borders whose whole check is in their fuzzer."""

from __future__ import annotations

import pytest

from fuzz import borders

pytestmark = pytest.mark.fuzz


@pytest.mark.parametrize("name", ["profiles", *borders.SMALL])
def test_hostile_input(name: str) -> None:
    """What comes from outside is a checked value or one printable sentence."""
    borders.check_all(name)
