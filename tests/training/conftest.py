"""One import of TensorFlow for several runs, or for programs that tflaunch does not start."""

import functools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.launch import Launch
from support.warm_python import StartWarm, WarmPython, warm_tensorflow
from tflaunch_worker.features.preload import warm_client


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, warm_servers: Path) -> Iterator[Launch]:
    """Share a directory for runs, and one import of TensorFlow, among all tests of a file."""
    place = Launch(tmp_path_factory.mktemp("home"))
    place.env[warm_client.DIRECTORY] = str(warm_servers)
    try:
        yield place
    finally:
        place.end()


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
