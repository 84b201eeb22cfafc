"""A Docker engine with the project's image, and projects of docker-compose on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from compose import Compose
from engine import Engine, an_engine


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Make the image once for all tests."""
    with an_engine() as made:
        yield made


@pytest.fixture
def compose(engine: Engine, tmp_path: Path) -> Iterator[Compose]:
    """The project's compose file, with a job of the test's own."""
    project = Compose(engine, f"tfl{os.getpid()}", tmp_path / "job")
    try:
        yield project
    finally:
        project.end()
