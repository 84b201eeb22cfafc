"""Hosts reached over SSH; nothing may keep running on them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.launch import Launch
from support.needs import need
from support.netns_hosts import Bed, MakeBed
from support.sshd import Keyring
from support.waiting import PATIENCE


@pytest.fixture
def launch(launch: Launch) -> Launch:
    """Wait for hosts as patiently as for all else: beside much load, one needs longer than the default of 10 s."""
    launch.limits = {"connect": PATIENCE}
    return launch


@pytest.fixture
def make_bed(tmp_path: Path, keys: Keyring, is_passing: Callable[[], bool]) -> Iterator[MakeBed]:
    """Make hosts of namespaces; after the test no session may have left a process on one."""
    need("namespaces")
    made: list[Bed] = []
    with ExitStack() as stack:

        def make(hosts: int = 3, **options: Any) -> Bed:
            made.append(stack.enter_context(Bed(tmp_path / f"bed{len(made)}", keys, hosts, **options)))
            return made[-1]

        yield make
        left = [living for bed in made if is_passing() and (living := bed.wait_empty())]
        assert not left, f"left running: {left}"


@pytest.fixture
def bed(make_bed: MakeBed) -> Bed:
    """Three hosts."""
    return make_bed()
