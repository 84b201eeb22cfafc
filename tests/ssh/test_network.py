"""`tflaunch up` over hosts whose cables can be cut and whose power can fail."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from support.launch import LONG, PATIENCE, Launch, read_errors_until, read_until, wait_for_end
from support.netns_hosts import Bed
from support.processes import Living

LEASE = 9.0
"""A third of it is how long an agent may be silent, even at its start on a busy machine."""
GRACE = 0.5
QUICK = {"lease": LEASE, "grace": GRACE}
UNTIL_KILLED = "trap '' TERM; echo up; sleep 9999 & wait"
COUNTING = "trap '' TERM; i=0; until [ -e {go} ]; do i=$((i+1)); echo line $i; sleep 0.1; done; echo line last"


def shell_on(launch: Launch, hosts: list[str], script: str, **fields: Any) -> Path:
    """Write a spec with one shell task per host."""
    command = ["sh", "-c", script]
    return launch.spec(**{"cluster": {"worker": hosts}, "strategy": "none", "command": command, **fields})


def test_a_cut_shorter_than_the_lease_costs_nothing(bed: Bed, launch: Launch) -> None:
    """The tasks keep running, and no line is lost or duplicated; the host is silent, and nothing says so."""
    go = launch.directory / "go"
    spec = shell_on(
        bed.control(launch), ["h1", "h2"], COUNTING.format(go=go), timeouts={"lease": PATIENCE, "heartbeat": 3}
    )
    with bed.watch() as watch:
        running = launch.start("up", spec, until="line 5\n", count=2)
        bed.blackhole(2)
        read_errors_until(running, "lost the link to h2")
        bed.unblackhole(2)
        read_errors_until(running, "the link to h2 is restored")
        go.touch()
        wait_for_end(running)
    for task in ("worker:0", "worker:1"):
        *lines, last = launch.log(task).splitlines()
        assert (lines, last) == ([f"line {number}" for number in range(1, len(lines) + 1)], "line last")
    assert not watch.clashes()
    seen = {one for sample in watch.samples for one in sample.living}
    assert seen == {Living("worker:0", 0, 1), Living("worker:1", 0, 2)}


def test_a_host_that_stays_away_ends_the_job(bed: Bed, launch: Launch) -> None:
    """125, it is named, and no process is left anywhere.

    Only after the fence, 15 s, the job waits for it: on a busy machine, a limit that is as long may be over by then.
    """
    spec = shell_on(
        bed.control(launch),
        ["h1", "h2"],
        UNTIL_KILLED,
        timeouts={**QUICK, "connect": 20, "lost_host": 25},
        restart={"max": 1, "backoff": [0, 0]},
    )
    running = launch.start("up", spec, until="up", count=2)
    bed.power_off(2)
    _, err = wait_for_end(running, 125)
    assert "host h2 was lost: no message" in err
    assert "waiting for h2" in err  # with the reason, if one is known by then
    assert any(line.startswith("tflaunch: h2: ") for line in err.splitlines()[-4:]), err
    assert "not reached again within timeouts.lost_host (25 s)" in err
    assert not bed.wait_empty()


def test_a_host_that_does_not_know_the_others_is_found_before_the_start(bed: Bed, launch: Launch) -> None:
    """No line at all, or Debian's own 127.0.1.1 line: TensorFlow would wait indefinitely; exit 3."""
    others = "".join(line for line in bed.everybody().splitlines(keepends=True) if not line.endswith(" h1\n"))
    command = ["touch", f"{launch.directory}/started"]
    spec = launch.spec(cluster={"worker": ["h1:2222", "h2:2222"]}, command=command)
    for line, why in (("", "h2 does not know"), ("127.0.1.1 h1\n", "on h2 the name 'h1' means 127.0.1.1, which is h2")):
        bed.etc_hosts[2].write_text(others + line)
        ended = bed.control(launch).up(spec, code=3)
        assert why in ended.stderr
        assert not (launch.directory / "started").exists()
    launch.succeed("up", spec, "--set", f'hosts.h1.address="{bed.address(1)}"')


# ---- the fence between hosts: no other host reaches tasks

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


def test_who_is_not_in_the_cluster_reaches_no_task(bed: Bed, launch: Launch, tmp_path: Path) -> None:
    """The workers of two hosts reach each other and themselves all the time."""
    enough, outside = tmp_path / "enough", bed.address(OUTSIDE)
    command = ["python3", "-c", PEERS, str(enough)]
    spec = launch.spec(cluster={"worker": ["h1", "h2"]}, strategy="none", command=command, network="fenced")
    running = bed.control(launch).start("up", spec)
    output, ports = "", dict[int, int]()
    while len(ports) < 2:
        output += read_until(running, "\n")
        ports = {int(index): int(port) for index, port in re.findall(r"worker:(\d) .*on port (\d+)\n", output)}
    for index, port in ports.items():
        assert calls(bed, OUTSIDE, bed.address(index + 1), port, CONNECTIONS) == {"reset": CONNECTIONS}
    enough.touch()
    _, err = wait_for_end(running)
    assert "warning: connections from everywhere" not in err
    refused = sorted((r["task"], r["source"]) for r in launch.journal() if r["kind"] == "outsider_refused")
    assert refused == [("worker:0", outside), ("worker:1", outside)]
    assert err.count(f"refused a connection from {outside}") == 1
