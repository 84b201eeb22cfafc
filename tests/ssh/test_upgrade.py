"""Hosts where another release of tflaunch has left an agent, or still runs one."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.launch import Launch
from support.releases import release
from support.sshd import Sshd, StartSshd

from .test_hosts import shell_on

pytestmark = pytest.mark.ssh

UNTIL_GO = "echo begun; while [ ! -e go ]; do sleep 0.05; done; exit 7"


def agents_of(host: Sshd) -> set[Path]:
    """Return the agents in the host's cache."""
    return set((host.home / ".local/state/tflaunch/agents").glob("[0-9a-f]*"))


@pytest.mark.thorough
def test_a_cached_agent_of_another_release_is_left_alone(launch: Launch, sshd: StartSshd) -> None:
    """Each release starts its own; a run of the other one goes on, is taken over by this one, and restarts with it."""
    host = sshd()
    other = release(launch.directory)
    spec = shell_on(launch, {"h1": host}, UNTIL_GO, restart={"max": 1})
    other.env["HOME"] = launch.env["HOME"]
    started = other.run("up", "-d", spec)
    assert started.returncode == 0, started.stderr
    other.wait_for_log("worker:0", "begun")
    cached = agents_of(host)
    assert len(cached) == 1
    ended = launch.up(shell_on(launch, {"h1": host}, "true", name="second.json"))
    assert ended.returncode == 0, ended.stderr
    assert (len(agents_of(host)), cached < agents_of(host)) == (2, True)
    other.kill_supervisor()
    run = started.stdout.strip()
    resumed = launch.run("up", "--resume", run, "-d")
    assert resumed.returncode == 0, resumed.stderr
    (host.home / "go").touch()
    assert launch.run("wait", run).returncode == 7
    assert [task["attempt"] for task in launch.status(run)["tasks"]] == [1]
