"""No known_hosts file, host key or certificate breaks the check."""

from __future__ import annotations

import pytest

from fuzz import borders

pytestmark = pytest.mark.fuzz


def test_hostile_input() -> None:
    """A key is accepted, or there is one error, within two seconds."""
    borders.check_all("known_hosts")
