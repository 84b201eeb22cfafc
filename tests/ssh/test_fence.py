"""The fence between hosts: those of the run reach each other's tasks, no other host does."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from support.launch import LONG, PATIENCE, Launch, read_until
from support.netns_hosts import Bed

pytestmark = pytest.mark.ssh

OUTSIDE = 3
CONNECTIONS = 10_000 if LONG else 200

PEERS = """
import json, os, pathlib, socket, sys, threading, time
config = json.loads(os.environ["TF_CONFIG"])
index = config["task"]["index"]
workers = [address.rpartition(":") for address in config["cluster"]["worker"]]
server = socket.socket(socket.AF_INET6)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
server.bind(("", int(workers[index][2])))
server.listen(1000)
def serve():
    while True:
        connection, _ = server.accept()
        connection.sendall(b"hello")
        connection.close()
threading.Thread(target=serve, daemon=True).start()
def meet(host, port):
    while True:
        try:
            with socket.create_connection((host, int(port)), 5) as peer:
                if peer.recv(9) == b"hello":
                    return
        except OSError:
            pass
        time.sleep(0.02)
while not pathlib.Path(sys.argv[1]).exists():
    for host, _, port in workers:
        meet(host, port)
    print("met all on port", workers[index][2], flush=True)
    time.sleep(0.1)
"""
CALLS = """
import collections, socket, sys
found = collections.Counter()
for _ in range(int(sys.argv[3])):
    try:
        with socket.create_connection((sys.argv[1], int(sys.argv[2])), 60) as caller:
            found["answered" if caller.recv(9) else "reset"] += 1
    except ConnectionRefusedError:
        found["refused"] += 1
    except ConnectionResetError:
        found["reset"] += 1
print(*found.elements())
"""


def calls(bed: Bed, i: int, port: int) -> Counter[str]:
    """Connect from the host outside to a port of another, many times; return what came of it."""
    command = [*bed.host_prefix(OUTSIDE), sys.executable, "-c", CALLS, bed.address(i), str(port), str(CONNECTIONS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    return Counter(done.stdout.split())


@pytest.mark.parametrize("network", ["fenced", "open"])
def test_a_host_that_is_not_in_the_cluster_reaches_no_task(
    bed: Bed, launch: Launch, tmp_path: Path, network: str
) -> None:
    """The workers of two hosts reach each other and themselves all the time; in an open network a third does, too."""
    launch.prefix = bed.run_prefix
    launch.env["HOME"] = str(bed.client_home)
    enough = tmp_path / "enough"
    running = launch.start(
        "up",
        launch.spec(
            cluster={"worker": ["h1", "h2"]},
            strategy="none",
            command=["python3", "-c", PEERS, str(enough)],
            network=network,
        ),
    )
    output, ports = "", dict[int, int]()
    while len(ports) < 2:
        output += read_until(running, "\n")
        ports = {int(index) + 1: int(port) for index, port in re.findall(r"worker:(\d) .*on port (\d+)\n", output)}
    for host, port in sorted(ports.items()):
        assert calls(bed, host, port) == {"answered" if network == "open" else "reset": CONNECTIONS}
    enough.touch()
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert "warning: connections from everywhere" not in err
    refused = sorted((r["task"], r["source"]) for r in launch.journal() if r["kind"] == "outsider_refused")
    outside = bed.address(OUTSIDE)
    assert refused == ([] if network == "open" else [("worker:0", outside), ("worker:1", outside)])
    assert err.count(f"refused a connection from {outside}") == (network == "fenced")
