"""Hosts reached over SSH; nothing may keep running on them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.launch import Launch
from support.needs import need
from support.netns_hosts import Bed
from support.sshd import Keyring
from support.waiting import PATIENCE


@pytest.fixture
def launch(launch: Launch) -> Launch:
    """Wait for hosts as patiently as for all else: beside much load, one needs longer than the default of 10 s."""
    launch.limits = {"connect": PATIENCE}
    return launch


@pytest.fixture
def bed(tmp_path: Path, keys: Keyring, is_passing: Callable[[], bool]) -> Iterator[Bed]:
    """Three hosts of namespaces; after the test no session may have left a process on one."""
    need("namespaces")
    with Bed(tmp_path / "bed", keys) as hosts:
        yield hosts
        left = is_passing() and hosts.wait_empty()
        assert not left, f"left running: {left}"
