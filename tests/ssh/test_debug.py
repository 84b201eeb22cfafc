"""`tflaunch debug` for a task on a host that is reached over SSH."""

from __future__ import annotations

from typing import Any

import pytest

from support.launch import PATIENCE, Launch
from support.sshd import StartSshd, home_for_client
from support.terminals import Terminal

pytestmark = pytest.mark.ssh

PROGRAM = "import time\nlimit = 3\nbreakpoint()\nprint('limit', limit)"


def test_a_task_on_another_host_can_be_debugged(launch: Launch, sshd: StartSshd) -> None:
    """Through the link that exists; when that is lost, the task keeps waiting."""
    host = sshd()
    launch.env["HOME"] = str(home_for_client(launch.directory / "user", {"h1": host}))
    fields: dict[str, Any] = {
        "cluster": {"worker": ["h1"]},
        "strategy": "none",
        "workdir": "~",
        "timeouts": {"lease": 60},
    }
    running = launch.start("up", launch.spec(**fields, command=["/usr/bin/python3", "-c", PROGRAM]))
    assert running.stderr is not None
    while "worker:0 waits at a breakpoint" not in (line := running.stderr.readline()):
        assert line
    terminal = Terminal(launch, "tflaunch debug worker:0")
    terminal.read_until(b"(Pdb) ")
    terminal.type(b"!limit = 4\n")
    terminal.read_until(b"(Pdb) ")
    host.kill_connections()
    shown, code = terminal.read_to_end()
    assert (code, "the link to the host of worker:0 was lost; the task keeps waiting" in shown) == (125, True), shown
    while launch.status()["hosts"][0]["state"] != "connected":
        assert running.poll() is None
    again = Terminal(launch, "tflaunch debug worker:0")
    again.read_until(b"(Pdb) ")
    again.type(b"c\n")
    assert again.read_to_end()[1] == 0
    out, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert "limit 4" in out
