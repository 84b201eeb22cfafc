"""Hosts that are reached over SSH; nothing may be left running on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bed import Bed, MakeBed, need_bed
from sshd import Keyring, Sshd, StartSshd, need_sshd


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    """Key pairs for all tests: to make one takes longer than to start an sshd."""
    need_sshd()
    return Keyring(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def sshd(tmp_path: Path, keys: Keyring) -> Iterator[StartSshd]:
    """Start hosts; at the end of the test no session may have left a process."""
    started: list[Sshd] = []

    def start(name: str = "", **options: Any) -> Sshd:
        count = len(started) + 1
        options.setdefault("address", f"127.0.0.{count + 1}")
        started.append(Sshd(tmp_path / (name or f"h{count}"), keys, **options))
        return started[-1]

    try:
        yield start
        left = {host.name: living for host in started if (living := host.wait_empty())}
        assert not left, f"left running: {left}"
    finally:
        for host in started:
            host.stop()


@pytest.fixture
def make_bed(tmp_path: Path, keys: Keyring) -> Iterator[MakeBed]:
    """Make hosts of namespaces; at the end of the test no session may have left a process on one."""
    need_bed()
    made: list[Bed] = []
    with ExitStack() as stack:

        def make(hosts: int = 3, **options: Any) -> Bed:
            made.append(stack.enter_context(Bed(tmp_path / f"bed{len(made)}", keys, hosts, **options)))
            return made[-1]

        yield make
        left = [living for bed in made if (living := bed.wait_empty())]
        assert not left, f"left running: {left}"


@pytest.fixture
def bed(make_bed: MakeBed) -> Bed:
    """Three hosts."""
    return make_bed()
