"""`tflaunch profile` for a task on a host that is reached over SSH."""

from __future__ import annotations

from typing import Any

import pytest

from support.launch import Launch
from support.sshd import StartSshd, home_for_client
from support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.ssh

PROGRAM = """
print("trains", flush=True)
while True:
    sum(range(1000))
"""


def test_profiles_come_home_from_other_hosts(launch: Launch, sshd: StartSshd) -> None:
    """Into the run's directory; a lost link ends a profile with a sentence, and not the task."""
    host = sshd()
    launch.env["HOME"] = str(home_for_client(launch.directory / "user", {"h1": host}))
    fields: dict[str, Any] = {
        "cluster": {"worker": ["h1", "h1"]},
        "workdir": "~",
        "timeouts": {"lease": 60, "grace": 1},
    }
    started = launch.run("up", "-d", launch.spec(**fields, command=["/usr/bin/python3", "-c", PROGRAM]))
    assert started.returncode == 0, started.stderr
    for task in ("worker:0", "worker:1"):
        launch.wait_for_log(task, "trains")
    made = launch.run("profile", "--for", "500ms")
    assert made.returncode == 0, made.stderr
    assert sorted(line[:9] for line in made.stdout.splitlines()) == ["worker:0:", "worker:1:"]
    profiles = launch.run_directory() / "profiles/python"
    (session,) = profiles.iterdir()
    stacks = [path.read_text() for path in session.glob("*.folded")]
    assert ["main thread;<module> (<string>:" in text for text in stacks] == [True, True]
    lasting = launch.start("profile", "--for", "10m", "worker:0")
    wait_until(lambda: len(list(profiles.iterdir())) == 2)
    host.kill_connections()
    _, err = lasting.communicate(timeout=PATIENCE)
    assert (lasting.returncode, "worker:0 is not profiled: the link to its host is lost" in err) == (125, True), err
    assert launch.status()["attempt"] == 0
    assert launch.run("down").returncode == 0
