"""No output of `ssh -G` and no SSH configuration surprises its reader."""

from __future__ import annotations

import pytest

from fuzz import borders

pytestmark = pytest.mark.fuzz


def test_hostile_input() -> None:
    """What is said of a host, or one sentence, within two seconds."""
    borders.check_all("ssh_config")
