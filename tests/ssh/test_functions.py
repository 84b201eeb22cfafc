"""Functions as tasks on hosts over SSH."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

import tflaunch
from support.launch import Launch
from support.sshd import StartSshd, home_for_client

pytestmark = pytest.mark.ssh


@pytest.fixture
def fields(launch: Launch, sshd: StartSshd, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two hosts with a bare Python of this version, and this program as a user who knows them."""
    hosts = {"h1": sshd(), "h2": sshd()}
    monkeypatch.setenv("HOME", str(home_for_client(launch.directory / "user", hosts)))
    monkeypatch.setenv("TFLAUNCH_HOME", str(launch.home))
    monkeypatch.chdir(launch.directory)
    python = os.path.realpath(sys.executable)
    named = {"cluster": {"worker": [*hosts]}, "hosts": {"*": {"python": python}}, "strategy": "none"}
    return {**named, "restart": {"max": 0}, "timeout": 600}


def test_values_come_home(fields: dict[str, Any]) -> None:
    """Several parts of them, from a host without cloudpickle, and from a process that has imported modules before."""
    given = bytes(range(256)) * 4000

    def double(data: bytes) -> tuple[str, str, bytes]:
        return os.environ["TFLAUNCH_PRELOAD"], os.environ["HOME"], data * 2

    values = tflaunch.run(double, args=(given,), preload=["json", "decimal"], **fields).values
    assert {task: (preloaded, data) for task, (preloaded, _, data) in values.items()} == {
        "worker:0": ("json,decimal", given * 2),
        "worker:1": ("json,decimal", given * 2),
    }
    assert len({home for _, home, _ in values.values()} - {os.environ["HOME"]}) == 2


def test_the_culprit_s_exception_comes_home(fields: dict[str, Any]) -> None:
    class OwnError(Exception):
        pass

    def fail() -> None:
        if os.environ["TFLAUNCH_TASK"] == "worker:1":
            raise OwnError("no data in shard 1")

    with pytest.raises(OwnError, match="no data in shard 1") as raised:
        tflaunch.run(fail, trust_hosts=True, **fields)
    assert "in fail\n" in str(raised.value.__cause__)
    with pytest.raises(tflaunch.JobFailed, match="OwnError: no data in shard 1"):
        tflaunch.attach().wait().check()
