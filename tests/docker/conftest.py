"""A Docker engine with the project's image, and projects of docker-compose on it."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from support.compose import Compose
from support.container_engine import IMAGE, Engine, an_engine
from support.launch import Launch
from support.waiting import wait_until

OWN_ENVIRONMENT = {
    "PATH": "/opt/own/bin:/opt/tflaunch/bin:/usr/bin:/bin",
    "LD_LIBRARY_PATH": "/opt/own/lib",
    "TFLAUNCH_HOME": "/state/own",
    "TFLAUNCH_RUN": "another",
}
"""What containers of tests get in addition to the image's settings."""
_LEFT = "grep -l [t]flaunch-agent /proc/[0-9]*/cmdline; grep -l '^State:.Z' /proc/[0-9]*/status"


def _is_empty(engine: Engine, name: str) -> bool:
    """Return whether nothing of tflaunch is in a container."""
    return not engine.docker("exec", name, "sh", "-c", _LEFT, may_fail=True)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Build the image once for all tests."""
    with an_engine() as made:
        yield made


@pytest.fixture
def compose(engine: Engine, tmp_path: Path) -> Iterator[Compose]:
    """The project's compose file, with the test's own job."""
    project = Compose(engine, f"tfl{os.getpid()}", tmp_path / "job")
    try:
        yield project
    finally:
        project.end()


@pytest.fixture
def containers(engine: Engine, launch: Launch) -> Iterator[list[str]]:
    """Two containers on their own network, with the container engine available to the launcher.

    Their process 1 waits for no orphan; a run leaves none.
    """
    launch.env.update({name: value for name, value in engine.env.items() if name == "DOCKER_HOST"})
    names = [f"tfl{os.getpid()}-c{number}" for number in (1, 2)]
    network = f"tfl{os.getpid()}"
    engine.docker("network", "create", network)
    starting = ["run", "--detach", "--label", "tflaunch.test", "--network", network]
    starting += [word for name, value in OWN_ENVIRONMENT.items() for word in ("--env", f"{name}={value}")]
    try:
        for name in names:
            engine.docker(*starting, "--name", name, IMAGE, "sleep", "infinity")
        yield names
        for name in names:
            wait_until(partial(_is_empty, engine, name), otherwise=f"agents or zombies are left in {name}")
    finally:
        if left := [name for name in names if engine.has("container", name)]:
            engine.docker("rm", "--force", *left)
        engine.docker("network", "rm", network)
