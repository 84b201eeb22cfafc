"""A host that sends arbitrary frames loses its own link, and never ends the run with a traceback."""

from __future__ import annotations

import pytest

from fuzz import borders

pytestmark = pytest.mark.fuzz


def test_no_agent_can_surprise_the_supervisor() -> None:
    """Events survive the journal, messages fit a terminal, and exit codes are exit codes."""
    borders.check_all("frames")
