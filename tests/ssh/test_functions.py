"""Functions as tasks on hosts over SSH."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

import tflaunch
from support.launch import Launch
from support.sshd import StartSshd, home_for_client
from support.waiting import PATIENCE

pytestmark = pytest.mark.ssh


def test_values_come_home(launch: Launch, sshd: StartSshd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several parts of them, from hosts with a bare Python, and from processes that have imported modules before."""
    hosts = {"h1": sshd(), "h2": sshd()}
    monkeypatch.setenv("HOME", str(home_for_client(launch.directory / "user", hosts)))
    monkeypatch.setenv("TFLAUNCH_HOME", str(launch.home))
    monkeypatch.chdir(launch.directory)
    python = os.path.realpath(sys.executable)
    fields: dict[str, Any] = {"cluster": {"worker": [*hosts]}, "hosts": {"*": {"python": python}}, "strategy": "none"}
    given = bytes(range(256)) * 4000

    def double(data: bytes) -> tuple[str, str, bytes]:
        return os.environ["TFLAUNCH_PRELOAD"], os.environ["HOME"], data * 2

    values = tflaunch.run(double, args=(given,), preload=["json", "decimal"], timeout=PATIENCE, **fields).values
    assert {task: (preloaded, data) for task, (preloaded, _, data) in values.items()} == {
        "worker:0": ("json,decimal", given * 2),
        "worker:1": ("json,decimal", given * 2),
    }
    assert len({home for _, home, _ in values.values()} - {os.environ["HOME"]}) == 2
