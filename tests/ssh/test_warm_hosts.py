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


def test_servers_are_started_listed_and_stopped_there(launch: Launch, sshd: StartSshd) -> None:
    """Runs are forked from one unless its modules have changed; a host that is not reached is named."""
    hosts = {"h1": sshd(), "h2": sshd()}
    module = launch.directory / "mine.py"
    module.write_text("import os\npid, value = os.getpid(), 'one'\n")
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
    module.write_text("import os\npid, value = os.getpid(), 'second'\n")
    assert launch.up(spec).stdout.count("second True") == 2
    for pid in started.values():
        wait_gone(pid)
    left = {name: server_on(host) for name, host in hosts.items()}
    for name, host in hosts.items():
        assert not host.wait_empty(besides=[left[name]])
    hosts["h2"].stop_listening()
    ended = launch.run("warm", "--stop", spec)
    assert ended.stderr.startswith("tflaunch: ended 1 warm server\ntflaunch: h2: ")
    assert (ended.returncode, hosts["h1"].wait_empty()) == (125, [])
    psutil.Process(left["h2"]).kill()
    wait_gone(left["h2"])
    assert json.loads(launch.run("warm", "--json").stdout) == []
