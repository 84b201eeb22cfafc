"""The fence between hosts: those of the run reach each other's tasks, no other host does; nor in private networks."""

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
            with socket.create_connection((host, int(port))) as peer:
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


def calls(bed: Bed, caller: int, address: str, port: int, count: int) -> Counter[str]:
    """Connect from a host to a port, many times; return what came of it."""
    command = [*bed.host_prefix(caller), sys.executable, "-c", CALLS, address, str(port), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    return Counter(done.stdout.split())


@pytest.mark.parametrize("network", ["fenced", "open", "private"])
def test_who_is_not_in_the_cluster_reaches_no_task(bed: Bed, launch: Launch, tmp_path: Path, network: str) -> None:
    """The workers of two hosts reach each other and themselves all the time; in an open network a third does, too.

    In a private one, the workers of a host do; nobody else does, not even from the host's own addresses.
    """
    enough, outside = tmp_path / "enough", bed.address(OUTSIDE)
    hosts = ["h1", "h1"] if network == "private" else ["h1", "h2"]
    command = ["python3", "-c", PEERS, str(enough)]
    spec = launch.spec(cluster={"worker": hosts}, strategy="none", command=command, network=network)
    running = bed.control(launch).start("up", spec)
    output, ports = "", dict[int, int]()
    while len(ports) < 2:
        output += read_until(running, "\n")
        ports = {int(index): int(port) for index, port in re.findall(r"worker:(\d) .*on port (\d+)\n", output)}
    for index, port in ports.items():
        if network == "private":
            for address in ("127.0.0.1", bed.address(1)):
                assert calls(bed, 1, address, port, 1) == {"refused": 1}
        else:
            found = calls(bed, OUTSIDE, bed.address(index + 1), port, CONNECTIONS)
            assert found == {"answered" if network == "open" else "reset": CONNECTIONS}
    enough.touch()
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert "warning: connections from everywhere" not in err
    refused = sorted((r["task"], r["source"]) for r in launch.journal() if r["kind"] == "outsider_refused")
    assert refused == ([("worker:0", outside), ("worker:1", outside)] if network == "fenced" else [])
    assert err.count(f"refused a connection from {outside}") == (network == "fenced")
    # The hosts of the bed have no default route.
    assert err.count("tasks have no way out of the private network of h1: pasta ") == (network == "private")
