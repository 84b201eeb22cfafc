"""No output of `ssh -G` and no SSH configuration breaks its parser."""

from __future__ import annotations

import pytest

from fuzz import borders

pytestmark = pytest.mark.fuzz


def test_hostile_input() -> None:
    """The settings of a host, or one error, within two seconds."""
    borders.check_all("ssh_config")
