"""A spec says anything, and is answered with sentences."""

from __future__ import annotations

import pytest

from fuzz import borders

pytestmark = pytest.mark.fuzz


def test_no_spec_can_surprise_the_launcher() -> None:
    """Every problem has a place and a sentence; what has none can be planned, kept and rendered."""
    borders.check_all("spec_files")
