"""`"network": "private"` on several hosts: tasks reach each other through relays, and others reach nothing."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.launch import LONG, PATIENCE, Launch, read_errors_until, read_until
from support.netns_hosts import Bed

pytestmark = pytest.mark.ssh

PROGRAMS = Path(__file__).parent.parent / "training" / "programs"
HEARTBEAT = 4.0
SILENCE = 60.0
"""Seconds for which a chief must not wait, even on a busy machine."""

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
def echo(connection):
    with connection, connection.makefile("rb") as file:
        connection.sendall(file.read()[::-1] + str(index).encode())
def serve():
    while True:
        connection, (source, *_) = server.accept()
        threading.Thread(target=echo, args=[connection], daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
def ask(host, port, data):
    while True:
        try:
            with socket.create_connection((host, int(port)), 20) as peer:
                threading.Thread(target=lambda: (peer.sendall(data), peer.shutdown(socket.SHUT_WR))).start()
                answer = b"".join(iter(lambda: peer.recv(1 << 20), b""))
                assert answer, "it ended without an answer"
                return answer
        except (OSError, AssertionError) as error:
            print("again:", error, flush=True)
            time.sleep(0.1)
for size in (0, 1, 16_384, 5_000_001):
    data = os.urandom(size)
    for number, (host, _, port) in enumerate(workers):
        assert ask(host, port, data) == data[::-1] + str(number).encode()
print("met all", config["cluster"]["worker"], os.environ["no_proxy"], flush=True)
enough = pathlib.Path(sys.argv[1])
while not enough.exists():
    time.sleep(0.05)
"""

CALLS = """
import socket, sys
for _ in range(50):
    try:
        with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) as caller:
            caller.sendall(b"0123456789" * 100)
            caller.shutdown(socket.SHUT_WR)
            heard = b"".join(iter(lambda: caller.recv(1000), b""))
            print("refused" if heard[:1] in (b"", b"\\x15") else "answered")
    except ConnectionError:
        print("refused")
"""
"""A task answers with what it gets; a relay sends at most a TLS alert."""


def on(bed: Bed, launch: Launch) -> Launch:
    """Run tflaunch on the controller, as a user who knows the hosts."""
    launch.prefix = bed.run_prefix
    launch.env["HOME"] = str(bed.client_home)
    return launch


def training(bed: Bed, launch: Launch, **fields: Any) -> Path:
    """Write a spec of a training on hosts with this environment's Python, in a private network."""
    on(bed, launch).preload = []
    hosts = {bed.name(i): {"python": sys.executable} for i in (1, 2)}
    return launch.spec(hosts=hosts, env={"TF_CPP_MIN_LOG_LEVEL": "2"}, network="private", **fields)


def peers(bed: Bed, launch: Launch, enough: Path, **fields: Any) -> Path:
    """Write a spec of three tasks on two hosts that ask each other, and end once a file exists."""
    command = ["python3", "-c", PEERS, str(enough)]
    cluster = {"worker": ["h1", "h1", "h2"]}
    return on(bed, launch).spec(cluster=cluster, strategy="none", command=command, network="private", **fields)


def test_tasks_of_two_hosts_reach_each_other(bed: Bed, launch: Launch, tmp_path: Path) -> None:
    """With data of any size, in both directions; a third host that knows TF_CONFIG reaches none of them."""
    enough = tmp_path / "enough"
    running = launch.start("up", peers(bed, launch, enough))
    output = read_until(running, "met all", 3)
    for host, port in sorted(set(re.findall(r"127\.90\.0\.(\d):(\d+)", output))):
        calls = [*bed.host_prefix(3), sys.executable, "-c", CALLS, bed.address(int(host)), port]
        done = subprocess.run(calls, capture_output=True, text=True, check=True, timeout=PATIENCE)
        assert set(done.stdout.split()) == {"refused"}, done
    enough.touch()
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert err.count("refused a connection from") == 1
    assert f"refused a connection from {bed.address(3)} to worker:" in err
    refused = sorted((r["task"], r["source"]) for r in launch.journal() if r["kind"] == "outsider_refused")
    assert refused == [("worker:0", bed.address(3)), ("worker:2", bed.address(3))]


def test_a_supervisor_that_takes_over_has_other_keys(bed: Bed, launch: Launch, tmp_path: Path) -> None:
    """The next attempt uses them."""
    enough = tmp_path / "enough"
    running = launch.start("up", peers(bed, launch, enough, timeouts={"lease": 240, "grace": 0.2}))
    read_until(running, "met all", 3)
    running.kill()
    running.communicate(timeout=PATIENCE)
    run = launch.run_directory().name
    running = launch.start("up", "--resume", run)
    read_errors_until(running, "is restored")
    assert launch.run("restart", run).returncode == 0
    read_until(running, "met all", 3)
    enough.touch()
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert "refused" not in err


@pytest.mark.tensorflow
def test_mirrored_workers_train_on_two_hosts(bed: Bed, launch: Launch) -> None:
    """Also after a restart, on other ports, in `make nightly`; the test above restarts without TensorFlow."""
    fault = "if task == 'worker:1' and step == 2 and attempt == 0: os._exit(7)" if LONG else ""
    command = ["python", str(PROGRAMS / "mirrored.py"), "5", fault]
    cluster = {"worker": ["h1", "h2"]}
    ended = launch.up(training(bed, launch, cluster=cluster, command=command, restart={"backoff": [0, 0]}))
    assert ended.returncode == 0, ended.stderr
    assert re.findall(r"step 5: weight (\d+)", launch.log("worker:0")) == ["10"]
    assert "refused" not in ended.stderr


@pytest.mark.tensorflow
@pytest.mark.parametrize("number", range(20 if LONG else 1))
def test_parameter_servers_go_on_when_a_host_falls_silent(bed: Bed, launch: Launch, number: int) -> None:
    """Their chief sees that the connections end, within a heartbeat and 2 s, and the other worker takes the step."""
    cluster = {"chief": ["h1"], "worker": ["h1", "h2"], "ps": ["h1"]}
    roles = {"worker": {"server": True}, "ps": {"server": True}}
    command = ["python", str(PROGRAMS / "chief.py")]
    timeouts = {"heartbeat": HEARTBEAT, "lease": 120}
    running = launch.start(
        "up", training(bed, launch, cluster=cluster, command=command, roles=roles, timeouts=timeouts)
    )
    wait_until(lambda: steps(launch) > 20)
    bed.blackhole(2)
    last, longest, reached = time.monotonic(), 0.0, steps(launch)
    while longest < HEARTBEAT / 2:  # until the chief has waited for the silent host, and goes on
        wait_until(lambda: steps(launch) > reached)  # noqa: B023
        now, reached = time.monotonic(), steps(launch)
        longest, last = now - last, now
    print(f"pause {longest:.1f} s")
    # On a busy machine TensorFlow itself takes seconds for a step. Without the end of its connections it waits on.
    assert longest < (HEARTBEAT + 2 if LONG else SILENCE)
    bed.unblackhole(2)
    (launch.directory / "enough").touch()
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err


def steps(launch: Launch) -> int:
    """Return how many steps the chief has made."""
    return launch.log("chief:0").count("step ") if list(launch.home.glob("runs/*/logs/chief-0.log")) else 0


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll a condition."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
