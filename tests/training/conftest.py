"""Processes that have imported TensorFlow, for all programs of this directory that tflaunch does not start."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from support.warm_python import StartWarm, WarmPython


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartWarm]:
    """Start a process for a Keras version at its first use."""
    with ExitStack() as stack:

        @functools.cache
        def start(legacy_keras: str) -> WarmPython:
            started = WarmPython(tmp_path_factory.mktemp("warm"), legacy_keras)
            stack.callback(started.close)
            return started

        yield start
