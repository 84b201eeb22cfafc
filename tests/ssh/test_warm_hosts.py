"""Warm servers on hosts that are reached over SSH."""

from __future__ import annotations

import json
import sys
from typing import Any

import psutil
import pytest

from support.launch import Launch
from support.sshd import Sshd, StartSshd
from support.waiting import wait_gone
from tflaunch_worker.features.preload import warm_client

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
    fields: dict[str, Any] = {"env": {"PYTHONPATH": str(module.parent)}, "preload": ["mine"], "warm": "10m"}
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
    module.write_text("import os\npid, value = os.getpid(), 'second'\n")
    assert "second True" in run()
    wait_gone(first)
    last = server_on(host)
    assert not host.wait_empty(besides=[last])
    assert server_on(host) == last
    psutil.Process(last).kill()
    wait_gone(last)
    assert "second True" in run()
    psutil.Process(server_on(host)).kill()
    assert json.loads(launch.run("warm", "--json").stdout) == []


def test_servers_are_started_listed_and_stopped_there(launch: Launch, sshd: StartSshd) -> None:
    """The first run is forked from one; a host that is not reached is named."""
    hosts = {"h1": sshd(), "h2": sshd()}
    (launch.directory / "mine.py").write_text("import os\npid, value = os.getpid(), 'one'\n")
    fields: dict[str, Any] = {"env": {"PYTHONPATH": str(launch.directory)}, "preload": ["mine"], "warm": "10m"}
    spec = shell_on(launch, hosts, "", command=[sys.executable, "-c", PROGRAM], **fields)
    ended = launch.run("warm", spec, "--json")
    assert ended.returncode == 0, ended.stderr
    started = {server["host"]: server["pid"] for server in json.loads(ended.stdout)}
    assert started == {name: server_on(host) for name, host in hosts.items()}
    out = launch.up(spec).stdout
    assert all(f"{pid} one True" in out for pid in started.values())
    listed = launch.run("warm", "--list", spec).stdout.splitlines()[1:]
    assert [line.split()[:3] for line in listed] == [[name, sys.executable, "mine"] for name in hosts]
    hosts["h2"].stop_listening()
    ended = launch.run("warm", "--stop", spec)
    assert ended.stderr.startswith("tflaunch: ended 1 warm server\ntflaunch: h2: ")
    assert (ended.returncode, hosts["h1"].wait_empty()) == (125, [])
    psutil.Process(started["h2"]).kill()
