"""A damaged journal is refused in a sentence, or leads to a job that can be shown."""

from __future__ import annotations

import pytest

from fuzz import borders

pytestmark = pytest.mark.fuzz


def test_no_journal_can_surprise_a_reader() -> None:
    """Whatever is damaged in it."""
    borders.check_all("journal")
