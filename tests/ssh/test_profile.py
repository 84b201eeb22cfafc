"""`tflaunch profile` for a task on a host that is reached over SSH."""

from __future__ import annotations

import time

import pytest

from support.launch import PATIENCE, Launch
from support.profiled_program import write_program
from support.sshd import StartSshd, home_for_client
from support.xspace import plane, xspace

pytestmark = pytest.mark.ssh

PROFILE = xspace(plane("/host:CPU", {"pool": [("MatMul:MatMul", 0, 10), ("x" * 300_000, 0, 20)]}))


def test_profiles_come_home_from_other_hosts(launch: Launch, sshd: StartSshd) -> None:
    """Past the fence, into the run's directory; a lost link ends a profile with a sentence, and not the task."""
    host = sshd()
    launch.env["HOME"] = str(home_for_client(launch.directory / "user", {"h1": host}))
    command = ["/usr/bin/python3", *write_program(launch.directory, PROFILE)]
    fields = {"cluster": {"worker": ["h1", "h1"]}, "workdir": "~", "timeouts": {"lease": 60, "grace": 1}}
    started = launch.run("up", "-d", launch.spec(**fields, command=command))
    assert started.returncode == 0, started.stderr
    until = time.monotonic() + PATIENCE
    while [record["kind"] for record in launch.journal()].count("port_opened") < 2:
        assert time.monotonic() < until
        time.sleep(0.1)
    made = launch.run("profile", "--tensorflow", "--for", "100ms")
    assert made.returncode == 0, made.stderr
    (session,) = (launch.run_directory() / "profiles/plugins/profile").iterdir()
    assert [path.read_bytes() for path in session.iterdir()] == [PROFILE, PROFILE]
    assert launch.run("profile", "--for", "200ms", "worker:0").stdout.startswith("worker:0: ")
    lasting = launch.start("profile", "--tensorflow", "--for", "10m", "worker:0")
    while launch.log("worker:0").count("profiling") < 2:
        assert time.monotonic() < until
        time.sleep(0.1)
    host.kill_connections()
    _, err = lasting.communicate(timeout=PATIENCE)
    assert (lasting.returncode, "worker:0 is not profiled: the link to its host is lost" in err) == (125, True), err
    while "told to stop" not in launch.log("worker:0"):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert launch.status()["attempt"] == 0
    assert launch.run("down").returncode == 0
