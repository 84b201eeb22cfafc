"""One import of TensorFlow for several programs, whether tflaunch starts them or not."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from support.launch import SHARED, Launch
from support.warm_python import StartWarm, WarmPython, warm_tensorflow


@pytest.fixture(scope="session")
def warm_python() -> Iterator[StartWarm]:
    """Start a process for a Keras version at its first use."""
    with ExitStack() as stack:

        @functools.cache
        def start(legacy_keras: str) -> WarmPython:
            started = warm_tensorflow(legacy_keras)
            stack.callback(started.close)
            return started

        yield start


@pytest.fixture
def shared_import(launch: Launch) -> None:
    """Let the tasks of each run share an import of TensorFlow."""
    launch.preload = SHARED
