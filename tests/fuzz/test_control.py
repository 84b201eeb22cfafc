"""A caller that sends arbitrary data is refused, and the run continues."""

from __future__ import annotations

import pytest

from fuzz import borders

pytestmark = pytest.mark.fuzz


def test_no_caller_can_surprise_the_supervisor() -> None:
    """The next caller is served."""
    borders.check_all("control")
