"""What a host prints before there is an agent costs that host, never the run."""

from __future__ import annotations

import pytest

from fuzz import borders

pytestmark = pytest.mark.fuzz


def test_nothing_that_a_host_prints_is_believed() -> None:
    """Every answer ends in an agent or in one printable sentence."""
    borders.check_all("boot")
