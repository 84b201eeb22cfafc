"""Synced code stays inside its directory on both sides."""

from __future__ import annotations

import pytest

from fuzz import borders

pytestmark = pytest.mark.fuzz


def test_hostile_input() -> None:
    """Files of a tree arrive unchanged, no file outside is read, and no offer writes elsewhere."""
    borders.check_all("sync")
