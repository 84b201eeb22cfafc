"""`tflaunch up` over hosts whose cables can be cut and whose power can fail."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support import failing_attempts
from support.launch import LONG, PATIENCE, SHARED, Launch, read_errors_until, read_until
from support.mnist import QUICK as QUICKLY
from support.mnist import has_trained
from support.netns_hosts import CONTROLLER, Bed
from support.processes import Living
from support.specs import REPOSITORY

pytestmark = pytest.mark.ssh

LEASE = 9.0
"""A third of it is how long an agent may be silent, even at its start on a busy machine."""
GRACE = 0.5
QUICK = {"lease": LEASE, "grace": GRACE}
NOTICED = 30
"""Seconds until a cut is noticed, on a busy machine; on an idle one, less than 10."""
FENCE = 3 + 0.5 + 5
"""Seconds from the loss of a link until its tasks are certainly dead, with these timeouts."""

COUNTING = "trap '' TERM; i=0; while [ $i -lt {count} ]; do i=$((i+1)); echo line $i; sleep 0.1; done"


def on(bed: Bed, launch: Launch) -> Launch:
    """Run tflaunch on the controller, as a user who knows the hosts."""
    launch.prefix = bed.run_prefix
    launch.env["HOME"] = str(bed.client_home)
    return launch


SHORTER = () if LONG else ("--epochs", "2")


def shell_on(launch: Launch, hosts: list[str], script: str, **fields: Any) -> Path:
    """Write a spec with one shell task per host."""
    command = ["sh", "-c", script]
    return launch.spec(**{"cluster": {"worker": hosts}, "strategy": "none", "command": command, **fields})


def examples(launch: Launch, name: str, *arguments: str) -> Path:
    """Return a copy of a spec of cluster_specs/ that uses this environment's Python on its hosts.

    TensorFlow is imported once per host, for all attempts.
    """
    launch.preload = SHARED
    spec = json.loads((REPOSITORY / "cluster_specs" / f"{name}.json").read_text())
    for host in spec["hosts"].values():
        host["python"] = sys.executable
    spec["command"] += (*QUICKLY, *arguments)
    return launch.spec(f"{name}.json", **spec)


@pytest.mark.tensorflow
@pytest.mark.skipif(not LONG, reason="trainings on elastic hosts show both strategies over cables")
@pytest.mark.parametrize(("name", "tasks"), [("ssh_parameter_server", 1), ("ssh_multi_worker", 3)])
def test_real_training_over_three_hosts(bed: Bed, launch: Launch, name: str, tasks: int) -> None:
    """From cluster_specs/."""
    ended = on(bed, launch).up(examples(launch, name))  # two epochs are too few for asynchronous steps
    assert ended.returncode == 0, ended.stderr
    assert has_trained(ended.stdout, tasks, is_quick=True), ended.stdout


@pytest.mark.parametrize("is_silent", [False, True], ids=["no carrier", "black hole"])
def test_a_cut_shorter_than_the_lease_costs_nothing(bed: Bed, launch: Launch, is_silent: bool) -> None:
    """The tasks keep running, no line is lost or duplicated, and the cut was noticed soon."""
    count = 150
    spec = shell_on(on(bed, launch), ["h1", "h2"], COUNTING.format(count=count))
    with bed.watch() as watch:
        running = launch.start("up", spec)
        read_until(running, "line 5\n", 2)
        (bed.blackhole if is_silent else bed.cut)(2)
        cut_at = time.monotonic()
        read_errors_until(running, "lost the link to h2")
        assert time.monotonic() - cut_at < NOTICED
        (bed.unblackhole if is_silent else bed.heal)(2)
        _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert "the link to h2 is restored" in err
    for task in ("worker:0", "worker:1"):
        assert launch.log(task) == "".join(f"line {number}\n" for number in range(1, count + 1))
    assert not watch.clashes()
    assert {one.attempt for sample in watch.samples for one in sample.living} == {0}


def test_a_cut_longer_than_the_lease_loses_the_host(bed: Bed, launch: Launch) -> None:
    """It is the culprit; nothing starts before the fence; it may return, and the job succeeds."""
    spec = shell_on(
        on(bed, launch),
        ["h1", "h2"],
        "[ $TFLAUNCH_ATTEMPT = 1 ] && exit; trap '' TERM; echo up; sleep 300 & wait",
        timeouts=QUICK,
        restart={"max": 1, "backoff": [0, 0]},
    )
    with bed.watch() as watch:
        running = launch.start("up", spec)
        read_until(running, "up", 2)
        bed.cut(2)
        cut_at = time.monotonic()
        samples: list[bool] = []

        def are_dead(living: frozenset[Living]) -> bool:
            """In three samples: a process that executes another program has no environment for a moment."""
            samples.append(any(one.host == 2 for one in living))
            return samples[-3:] == [False] * 3

        watch.wait_until(are_dead)
        seen = max(sample.when for sample in watch.samples if any(one.host == 2 for one in sample.living))
        assert seen - cut_at < LEASE + GRACE + 5, "lease and grace, and seconds for a busy machine"
        bed.heal(2)
        _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert "host h2 was lost" in err
    assert not watch.clashes()
    starts = [record for record in launch.journal() if record["kind"] == "start_task"]
    assert [record["attempt"] for record in starts] == [0, 0, 1, 1]
    assert not [sample for sample in watch.samples if {one.attempt for one in sample.living} == {0, 1}]


@pytest.mark.parametrize("failure", ["cut", "power"])
def test_a_host_that_stays_away_ends_the_job(bed: Bed, launch: Launch, failure: str) -> None:
    """125, it is named, and no process is left anywhere."""
    spec = shell_on(
        on(bed, launch),
        ["h1", "h2"],
        "trap '' TERM; echo up; sleep 300 & wait",
        timeouts={**QUICK, "connect": 10, "lost_host": 15},
        restart={"max": 1, "backoff": [0, 0]},
    )
    running = launch.start("up", spec)
    read_until(running, "up", 2)
    bed.cut(2) if failure == "cut" else bed.power_off(2)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 125, err
    assert "host h2 was lost: no message" in err
    assert "waiting for h2 (" in err
    assert any(line.startswith("tflaunch: h2: ") for line in err.splitlines()[-4:]), err
    assert "not reached again within timeouts.lost_host (15 s)" in err
    assert not bed.wait_empty()


def test_a_power_failure_of_the_operator_leaves_nothing(bed: Bed, launch: Launch) -> None:
    """The launcher died without closing its connections: after lease and grace nothing is alive."""
    spec = shell_on(on(bed, launch), ["h1", "h2"], "trap '' TERM; echo up; sleep 300 & wait", timeouts=QUICK)
    running = launch.start("up", spec)
    read_until(running, "up", 2)
    for host in (1, 2):
        bed.blackhole(host)
    running.kill()
    killed_at = time.monotonic()
    assert not bed.wait_empty()
    assert time.monotonic() - killed_at < LEASE + GRACE + 20


def test_a_lost_peer_is_named_rather_than_its_victim(bed: Bed, launch: Launch) -> None:
    """A task that fails because it can no longer reach its peer is not the first cause."""
    script = "echo up; if [ $TFLAUNCH_TASK = worker:0 ]; then read go <fifo; exit 1; fi; trap '' TERM; sleep 300 & wait"
    spec = shell_on(on(bed, launch), ["h1", "h2"], script, timeouts=QUICK, restart={"max": 0})
    bed.execute(1, "mkfifo", launch.directory / "fifo")
    running = launch.start("up", spec)
    read_until(running, "up", 2)
    bed.cut(2)
    read_errors_until(running, "lost the link to h2")
    (launch.directory / "fifo").write_text("go\n")
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 125, err
    assert any("host h2 was lost" in line for line in err.splitlines()[-4:]), err


def test_ctrl_c_twice_does_not_wait_for_a_host_that_is_cut_off(bed: Bed, launch: Launch) -> None:
    """Its agent stops the tasks by itself."""
    spec = shell_on(
        on(bed, launch),
        ["h1", "h2"],
        "trap '' TERM; echo up; sleep 300 & wait",
        timeouts={"lease": 20, "grace": GRACE, "heartbeat": 3},
    )
    running = launch.start("up", spec)
    read_until(running, "up", 2)
    bed.cut(2)
    read_errors_until(running, "lost the link to h2")
    running.send_signal(signal.SIGINT)
    read_errors_until(running, "ending")
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 125
    assert "may still run: worker:1 (pid " in err
    assert [process for process in bed.survivors(2) if "TFLAUNCH_TASK" in process.environ], "it waited for them"
    assert not bed.wait_empty()


@pytest.mark.parametrize("trap", ["loopback", "unknown"])
def test_a_host_that_does_not_know_the_others_is_found_before_the_start(bed: Bed, launch: Launch, trap: str) -> None:
    """Debian's own 127.0.1.1 line, or no line at all: TensorFlow would wait indefinitely; exit 3."""
    lines = bed.everybody().splitlines()
    lines = [line for line in lines if not line.endswith(" h1")] + (["127.0.1.1 h1"] if trap == "loopback" else [])
    bed.etc_hosts[2].write_text("\n".join(lines) + "\n")
    spec = launch.spec(cluster={"worker": ["h1:2222", "h2:2222"]}, command=["touch", "started"])
    ended = on(bed, launch).up(spec)
    assert ended.returncode == 3
    words = "on h2 the name 'h1' means 127.0.1.1, which is h2 itself" if trap == "loopback" else "h2 does not know"
    assert words in ended.stderr
    assert not (launch.directory / "started").exists()
    address = on(bed, launch).up(spec, "--set", f'hosts.h1.address="{bed.address(1)}"')
    assert address.returncode == 0, address.stderr


def test_tasks_are_given_addresses_that_all_hosts_can_reach(bed: Bed, launch: Launch) -> None:
    """Each connects to the other's port, which is held on the other's host."""
    script = """
import json, os, socket, threading
config = json.loads(os.environ["TF_CONFIG"])
addresses = [address.split(":") for address in config["cluster"]["worker"]]
me = config["task"]["index"]
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind(("", int(addresses[me][1])))
server.listen()
visited = threading.Event()
def serve():
    while True:
        try:
            with server.accept()[0] as peer:
                peer.sendall(b"x")
                if peer.recv(1): visited.set()  # the peer has read the answer, and needs no other one
        except ConnectionError: pass
threading.Thread(target=serve, daemon=True).start()
host, port = addresses[1 - me]
while True:  # until the program answers: before it listens, its agent's socket does, and resets connections
    try:
        with socket.create_connection((host, int(port))) as peer:
            if peer.recv(1):
                peer.sendall(b"y")
                break
    except ConnectionError: pass
visited.wait()
print("met", socket.gethostname(), host)
"""
    (launch.directory / "meet.py").write_text(script)
    spec = launch.spec(cluster={"worker": ["h1", "h2"]}, command=["python3", "meet.py"], legacy_keras=False)
    ended = on(bed, launch).up(spec)
    assert ended.returncode == 0, ended.stderr
    assert "met h1 h2" in ended.stdout
    assert "met h2 h1" in ended.stdout


@pytest.mark.parametrize("state", ["full", "read-only"])
def test_a_host_without_room_for_the_agent_is_one_sentence(bed: Bed, launch: Launch, state: str) -> None:
    """With the location and the remedy; exit 3."""
    if state == "full":
        bed.execute(2, "mount", "-o", "remount,size=16k", bed.home)
        bed.execute(2, "sh", "-c", f"cat /dev/zero >{bed.home}/ballast", check=False)
        words = "No space left on device"
    else:
        bed.execute(2, "mount", "-o", "remount,ro", bed.home)
        words = "Read-only file system"
    ended = on(bed, launch).up(shell_on(launch, ["h1", "h2"], "touch started"))
    assert ended.returncode == 3
    (sentence,) = ended.stderr.splitlines()
    assert sentence.startswith(f"tflaunch: h2: {bed.home}")
    assert words in sentence
    assert "TFLAUNCH_HOME in hosts.h2.env" in sentence
    assert not (launch.directory / "started").exists()


def test_a_host_that_is_off_is_named_and_delays_nobody(bed: Bed, launch: Launch) -> None:
    """A black hole costs the timeout, once, and is named along with other problems."""
    bed.power_off(2)
    bed.etc_hosts[CONTROLLER].write_text(bed.everybody().replace("10.77.0.3 h3", "10.77.0.3 nobody"))
    spec = shell_on(on(bed, launch), ["h1", "h2", "h3"], "touch started", timeouts={"connect": 10})
    begun = time.monotonic()
    ended = launch.up(spec)
    assert time.monotonic() - begun < 20, "twice the timeout"
    assert ended.returncode == 3
    assert [line.split(": ")[1] for line in ended.stderr.splitlines()] == ["h2", "h3"]
    assert not (launch.directory / "started").exists()


@pytest.mark.tensorflow
@pytest.mark.skipif(not LONG, reason="shells show what a cut costs, and trainings on elastic hosts a lost host")
def test_training_survives_a_cable_that_is_cut_for_a_while(bed: Bed, launch: Launch) -> None:
    """Shorter than the lease: TensorFlow continues, or fails and is restarted; all learn the same, and enough."""
    with bed.watch() as watch:
        running = on(bed, launch).start("up", examples(launch, "ssh_multi_worker", *SHORTER))
        read_until(running, "epoch 1 of ")
        bed.cut(2)
        read_errors_until(running, "lost the link to h2")
        time.sleep(10)  # clock: for a while is the subject; TensorFlow may have noticed by then, or not
        bed.heal(2)
        out, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    assert has_trained(out, 3, is_quick=True), out
    assert not watch.clashes()


def test_the_first_of_many_that_die_together_is_named_over_cables_of_different_length(bed: Bed, launch: Launch) -> None:
    """Victims' events arrive first: the agents' clocks decide, in seven attempts.

    The victims die late enough for an agent that waits for a busy machine to see its task's exit in time.
    """
    attempts = 8
    bed.delay(2, 200)
    bed.delay(3, 400)
    spec = on(bed, launch).spec(
        cluster={"worker": ["h1", "h2", "h3", "h1"]},
        command=["python3", "-c", failing_attempts.program(launch.directory, 4, attempts, (0.2, 0.3))],
        hosts={name: {"python": sys.executable} for name in ("h1", "h2", "h3")},
        **{**failing_attempts.FIELDS, "timeouts": {"grace": 30, "connect": 30}},
    )
    ended = on(bed, launch).up(spec)
    assert ended.returncode == 0, ended.stderr
    assert failing_attempts.named(launch.run_directory()) == failing_attempts.culprits(4, attempts)
