"""A supervisor that sends arbitrary orders is refused with a sentence, and the agent continues."""

from __future__ import annotations

import pytest

from fuzz import borders

pytestmark = pytest.mark.fuzz


def test_no_order_can_surprise_an_agent() -> None:
    """The next supervisor is greeted."""
    borders.check_all("orders")
