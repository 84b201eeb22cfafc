"""No request of a task breaks the proxy of its private network."""

from __future__ import annotations

import pytest

from fuzz import borders

pytestmark = pytest.mark.fuzz


def test_hostile_input() -> None:
    """It leads to one server, which gets one request, or is refused with a status."""
    borders.check_all("egress")
