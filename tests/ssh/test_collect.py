"""Files come home from hosts over SSH, also from one that cannot be reached when the job ends."""

from __future__ import annotations

import pytest

from support.launch import PATIENCE, Launch, read_until
from support.sshd import StartSshd, home_for_client
from tflaunch.errors import EXIT_INTERNAL

pytestmark = pytest.mark.ssh

WRITE = (
    "mkdir -p outputs && head -c 700000 /dev/urandom >outputs/model-{task.index} && echo written && "
    "until test -e {go}; do sleep 0.1; done"
)


def test_a_host_that_cannot_be_reached_at_the_end(launch: Launch, sshd: StartSshd) -> None:
    """The others' files are here, and its files come with `tflaunch fetch`."""
    hosts = {"h1": sshd(), "h2": sshd()}
    launch.env["HOME"] = str(home_for_client(launch.directory / "user", hosts))
    go = launch.directory / "go"
    spec = launch.spec(
        "mine.json",
        cluster={"worker": [*hosts]},
        strategy="none",
        command=["sh", "-c", WRITE.replace("{go}", str(go))],
        sync={},
        collect=["outputs"],
    )
    running = launch.start("up", spec)
    read_until(running, "written", 2)
    hosts["h2"].stop_listening()
    go.touch()
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    place = launch.run_directory() / "collected"
    assert f"1 file (683.6 KiB) of worker:0 on h1: {place / 'worker-0'}\n" in err
    assert "nothing of worker:1 on h2 was fetched: " in err
    assert f"to fetch the rest: tflaunch fetch {launch.run_directory().name}" in err
    assert not (place / "worker-1").exists()

    assert launch.run("fetch", "mine").returncode == EXIT_INTERNAL
    hosts["h2"].restart()
    fetched = launch.run("fetch", "mine")
    assert fetched.returncode == 0, fetched.stderr
    assert f"1 file (683.6 KiB) of worker:1 on h2: {place / 'worker-1'}\n" in fetched.stderr
    for index, host in enumerate(hosts.values()):
        (there,) = host.home.glob(".local/state/tflaunch/runs/*/agents/*/code/outputs/*")
        assert (place / f"worker-{index}" / "outputs" / there.name).read_bytes() == there.read_bytes()
        assert not host.wait_empty()
