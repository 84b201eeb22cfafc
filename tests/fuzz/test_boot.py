"""A host's output before the agent runs may lose that host, never the run."""

from __future__ import annotations

import pytest

from fuzz import borders

pytestmark = pytest.mark.fuzz


def test_nothing_that_a_host_prints_is_believed() -> None:
    """Every response leads to an agent or to one printable sentence."""
    borders.check_all("boot")
