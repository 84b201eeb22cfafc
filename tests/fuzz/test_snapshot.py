"""An agent that is queried read-only may send arbitrary responses."""

from __future__ import annotations

import pytest

from fuzz import borders

pytestmark = pytest.mark.fuzz


def test_no_agent_can_surprise_an_onlooker() -> None:
    """Every response is a state of tasks or one printable sentence."""
    borders.check_all("snapshot")
