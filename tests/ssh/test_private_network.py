"""`"network": "private"` on a host over SSH: its tasks reach each other, and nothing else on the host reaches them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.launch import PATIENCE, Launch, read_until
from support.netns_hosts import Bed

pytestmark = pytest.mark.ssh

PEERS = """
import json, os, pathlib, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
workers = [address.rpartition(":") for address in config["cluster"]["worker"]]
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind(("", int(workers[config["task"]["index"]][2])))
server.listen()
for host, _, port in workers:
    while True:
        try:
            socket.create_connection((host, int(port)), 20).close()
            break
        except OSError:
            time.sleep(0.02)
print("met all at", *config["cluster"]["worker"], flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""
CALL = "import socket, sys; print(socket.socket().connect_ex((sys.argv[1], int(sys.argv[2]))))"
REFUSED = "111"


def test_tasks_of_a_host_reach_each_other_and_nobody_reaches_them(bed: Bed, launch: Launch, tmp_path: Path) -> None:
    """Not even from its own addresses."""
    launch.prefix = bed.run_prefix
    launch.env["HOME"] = str(bed.client_home)
    enough = tmp_path / "enough"
    command = ["python3", "-c", PEERS, str(enough)]
    spec = launch.spec(cluster={"worker": ["h1", "h1"]}, strategy="none", command=command, network="private")
    running = launch.start("up", spec)
    output = read_until(running, "met all at", 2)
    ports = sorted(set(re.findall(r"localhost:(\d+)", output)))
    assert len(ports) == 2
    for address in ("127.0.0.1", bed.address(1)):
        for port in ports:
            call = [*bed.host_prefix(1), sys.executable, "-c", CALL, address, port]
            assert subprocess.check_output(call, text=True, timeout=PATIENCE).strip() == REFUSED
    enough.touch()
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    # The hosts of the bed have no default route.
    assert err.count("tasks have no way out of the private network of h1: pasta ") == 1
