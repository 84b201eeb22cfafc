"""A spec with any content gets readable messages."""

from __future__ import annotations

import pytest

from fuzz import borders

pytestmark = pytest.mark.fuzz


def test_no_spec_can_surprise_the_launcher() -> None:
    """Every problem has a place and a sentence; a spec without problems can be planned, stored and rendered."""
    borders.check_all("spec_files")
