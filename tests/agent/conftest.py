"""A real agent for each test, which must leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from talk import LocalAgent


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[LocalAgent]:
    """An agent that has been greeted by nobody yet."""
    started = LocalAgent(tmp_path)
    yield started
    assert not (log := started.end()), log
