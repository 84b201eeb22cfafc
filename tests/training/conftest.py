"""One import of TensorFlow for several programs that tflaunch does not start."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

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
