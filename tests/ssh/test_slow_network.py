"""A host whose network is slow is named, while three of them send each other data in a ring."""

from __future__ import annotations

import sys
import time

import pytest

from support.launch import LONG, PATIENCE, Launch
from support.netns_hosts import Bed

pytestmark = pytest.mark.ssh

RING = """
import json, os, socket, threading, time
config = json.loads(os.environ["TF_CONFIG"])
addresses = [address.rsplit(":", 1) for address in config["cluster"]["worker"]]
me = config["task"]["index"]
server = socket.create_server(("", int(addresses[me][1])), reuse_port=True)
data = bytes(1_000_000)
def serve():
    receiver = server.accept()[0]
    while receiver.recv(1000):
        receiver.sendall(data)
threading.Thread(target=serve, daemon=True).start()
while True:
    try:
        sender = socket.create_connection(addresses[me - 1])
        break
    except OSError:
        time.sleep(0.05)
while True:
    sender.sendall(b"x" * 1000)
    missing = len(data)
    while missing:
        missing -= len(sender.recv(missing))
    time.sleep(0.1)
"""


@pytest.mark.skipif(not LONG, reason="measures speed, so it needs a quiet machine: in `make nightly` only")
def test_the_host_with_a_slow_cable_is_named(bed: Bed, launch: Launch) -> None:
    """From what the kernels know about the tasks' connections."""
    launch.prefix = bed.run_prefix
    launch.env["HOME"] = str(bed.client_home)
    hosts = {bed.name(i): {"python": sys.executable} for i in bed.hosts}
    command = ["python", "-c", RING]
    spec = launch.spec(cluster={"worker": ["h1", "h2", "h3"]}, hosts=hosts, command=command, timeouts={"grace": 1})
    started = launch.run("up", "-d", spec)
    assert started.returncode == 0, started.stderr
    bed.delay(2, 20)
    until = time.monotonic() + PATIENCE
    # On a busy machine, another task may really be late before.
    while ("worker:1", "its network is slow") not in late_tasks(launch):
        assert time.monotonic() < until
        assert launch.status()["state"] == "running"
        time.sleep(0.2)
    assert launch.run("down").returncode == 0


def late_tasks(launch: Launch) -> list[tuple[str, str]]:
    """Return the tasks that were named so far, with the begin of the reason."""
    named = [record for record in launch.journal() if record["kind"] == "task_fell_behind"]
    return [(record["task"], record["reason"].partition(":")[0]) for record in named]
