"""An agent that is only looked at can show what it wants."""

from __future__ import annotations

import pytest

from fuzz import borders

pytestmark = pytest.mark.fuzz


def test_no_agent_can_surprise_an_onlooker() -> None:
    """Every answer is a state of tasks or one printable sentence."""
    borders.check_all("sight")
