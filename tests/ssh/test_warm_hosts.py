"""Warm servers on hosts that are reached over SSH."""

from __future__ import annotations

import json
import sys
from typing import Any

import psutil
import pytest

from support.agent_client import wait_gone
from support.launch import Launch
from support.sshd import Sshd, StartSshd
from tflaunch_worker.forkserver import warm_client

from .test_hosts import shell_on

pytestmark = pytest.mark.ssh

PROGRAM = "import os, mine; print(mine.pid, mine.value, os.getcwd() == os.environ['HOME'])"


def server_on(host: Sshd) -> int:
    """Return the only warm server on a host."""
    (status,) = warm_client.living_servers(str(host.home / ".local/state/tflaunch/warm")).values()
    return int(status["pid"])


def test_a_host_keeps_what_it_has_imported(launch: Launch, sshd: StartSshd) -> None:
    """The second run is forked from what the first has imported, unless that has changed."""
    host = sshd()
    module = host.home / "lib/mine.py"
    module.parent.mkdir()
    module.write_text("import os\npid, value = os.getpid(), 'one'\n")
    fields: dict[str, Any] = {"env": {"PYTHONPATH": str(module.parent)}, "preload": ["mine"], "warm": "1m"}
    spec = shell_on(launch, {"h1": host}, "", command=[sys.executable, "-c", PROGRAM], **fields)

    def run() -> str:
        ended = launch.up(spec)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    out = run()
    first = server_on(host)
    assert f"{first} one True" in out
    assert f"{first} one True" in run()
    assert server_on(host) == first
    module.write_text("import os\npid, value = os.getpid(), 'two'\n")
    assert "two True" in run()
    wait_gone(first)
    last = server_on(host)
    assert [process.pid for process in host.survivors()] == [last]
    psutil.Process(last).kill()
    wait_gone(last)
    assert "two True" in run()
    psutil.Process(server_on(host)).kill()
    assert json.loads(launch.run("warm", "--json").stdout) == []
