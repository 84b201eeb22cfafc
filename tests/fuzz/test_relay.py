"""No first frame leads to a task that its sender may not reach."""

from __future__ import annotations

import pytest

from fuzz import borders

pytestmark = pytest.mark.fuzz


def test_hostile_input() -> None:
    """It is that of another host of the run, or refused; `tests/agent/test_relay.py` sends such frames to a relay."""
    borders.check_all("relay")
