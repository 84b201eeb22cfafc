"""Hosts that lose power: jobs wait for them, go on with fewer tasks, or on spare hosts, and grow again."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from support.launch import SHARED, Launch, read_until, wait_for_end
from support.netns_hosts import Bed
from support.processes import Living
from support.specs import REPOSITORY
from support.waiting import wait_until

PROGRAMS = REPOSITORY / "tests" / "training" / "programs"
QUICK = {"connect": 30, "heartbeat": 5, "lease": 12, "grace": 0.5}
"""The heartbeat is how long an agent may be silent, even at its start on a busy machine."""
GANG = {"worker": ["h1", "h2", "h3"]}
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}

COUNT = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
role, index = os.environ["TFLAUNCH_TASK"].split(":")
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind(("", int(config["cluster"][role][int(index)].rpartition(":")[2])))
server.listen()
number = len(config["cluster"]["worker"])
print("attempt", os.environ["TFLAUNCH_ATTEMPT"], "of", number, "workers on", os.environ["PLACE"], flush=True)
while not os.path.exists("enough"):
    time.sleep(0.05)
"""


def start(bed: Bed, launch: Launch, cluster: dict[str, list[str]], **fields: Any) -> subprocess.Popen[str]:
    """Start a job on the controller whose tasks say on which host they are."""
    hosts = {bed.name(i): {"python": sys.executable, "env": {"PLACE": bed.name(i)}} for i in bed.hosts}
    used = {name for names in cluster.values() for name in names}
    common = {
        "cluster": cluster,
        "hosts": hosts if "spares" in fields else {name: hosts[name] for name in used},
        "command": ["python", "-c", COUNT],
        "restart": {"max": 3, "backoff": [0, 0]},
        "timeouts": QUICK,
    }
    return bed.control(launch).start("up", launch.spec(**{**common, **fields}))


def finish(launch: Launch, running: subprocess.Popen[str]) -> str:
    """End the tasks and wait for success; return what tflaunch printed."""
    (launch.directory / "enough").touch()
    _, err = wait_for_end(running)
    return err


def starts(launch: Launch) -> dict[str, list[str]]:
    """Return the hosts on which each task was started, in this order."""
    found: dict[str, list[str]] = {}
    for record in launch.records("task_started"):
        found.setdefault(record["task"], []).append(record["host"])
    return found


def test_a_gang_moves_to_the_spare_host_and_back(bed: Bed, launch: Launch) -> None:
    """Without a wait; the host that returns is spare from then on, and takes the place of the next one."""
    with bed.watch() as watch:
        running = start(bed, launch, {"worker": ["h1", "h2"]}, spares=1, restart={"backoff": ["1h", "1h"]})
        read_until(running, "attempt 0 of", 2)
        bed.power_off(2)
        assert "worker:1 | attempt 1 of 2 workers on h3" in read_until(running, "attempt 1 of", 2)
        status = json.loads(launch.run("ps", launch.run_directory().name, "--json").stdout)
        bed.power_on(2)
        wait_until(lambda: len(launch.records("host_joined", host="h2")) == 2, running)
        bed.power_off(3)
        assert "worker:1 | attempt 2 of 2 workers on h2" in read_until(running, "attempt 2 of", 2)
        err = finish(launch, running)
    assert any(Living("worker:1", 1, 3) in sample.living for sample in watch.samples)
    assert not watch.clashes()
    assert starts(launch) == {"worker:0": ["h1"] * 3, "worker:1": ["h2", "h3", "h2"]}
    (moved,) = (task for task in status["tasks"] if task["task"] == "worker:1")
    assert (moved["host"], moved["moved_from"]) == ("h3", "h2")
    spares = {host["host"]: (host["is_spare"], host["replaces"]) for host in status["hosts"]}
    assert spares == {"h1": (False, None), "h2": (True, None), "h3": (False, "h2")}
    assert "worker:1 moves from h2 to h3; 0 spare hosts left" in err
    assert "h2 is a spare host now" in err
    assert "worker:1 moves from h3 to h2; 0 spare hosts left" in err


# ---- with TensorFlow


def weights(text: str) -> dict[int, int]:
    """Return the weight after every completed step."""
    return {int(step): int(weight) for step, weight in re.findall(r"^step (\d+): weight (\d+)$", text, re.MULTILINE)}


@pytest.mark.tensorflow
def test_mirrored_training_goes_on_with_two_hosts_and_then_with_three(bed: Bed, launch: Launch) -> None:
    """Every step adds the number of workers to a weight: 3, 2, then 3; no step is lost or done twice."""
    ending = "if attempt and strategy.num_replicas_in_sync == 3: sys.exit()"
    command = ["python", str(PROGRAMS / "mirrored.py"), "0", ending]
    launch.preload = SHARED
    with bed.watch() as watch:
        elastic = {"min_workers": 2, "retry": "15s"}
        running = start(bed, launch, GANG, command=command, env=QUIET, elastic=elastic)
        read_until(running, "worker:0 | step 3")
        bed.power_off(3)
        read_until(running, "attempt 1 begins at step")
        read_until(running, "worker:0 | step")
        bed.power_on(3)
        finish(launch, running)
    assert not watch.clashes()
    first, second, third = re.split("---- tflaunch: .* ----\n", launch.log("worker:0"))
    assert all(weight == 3 * step for step, weight in weights(first).items())
    start_of_second = int(re.findall(r"begins at step (\d+)", second)[0])
    assert start_of_second >= 3
    for step, weight in weights(second).items():
        assert weight == 2 * step + start_of_second
    start_of_third = int(re.findall(r"begins at step (\d+)", third)[0])
    assert weights(third) == {start_of_third + 1: 2 * start_of_third + start_of_second + 3}


@pytest.mark.tensorflow
@pytest.mark.thorough
@pytest.mark.parametrize("comes_back", [True, False])
def test_parameter_server_training_goes_on_without_a_workers_host(bed: Bed, launch: Launch, comes_back: bool) -> None:
    """The worker returns alone with its host; if that stays away, the others resume from the checkpoint."""
    cluster = {"chief": ["h1"], "ps": ["h1"], "worker": ["h2", "h3"]}
    fields = {
        "command": ["python", str(PROGRAMS / "chief.py")],
        "roles": {"worker": {"server": True}, "ps": {"server": True}},
        "env": QUIET,
        "elastic": {"min_workers": 1, "retry": "5s"},
    }
    launch.preload = SHARED
    with bed.watch() as watch:
        running = start(bed, launch, cluster, **fields)
        read_until(running, "step 3\n")
        bed.power_off(3)
        if comes_back:
            wait_until(lambda: launch.records("link_lost", host="h3"), running)
            bed.power_on(3)
            wait_until(lambda: launch.records("task_started", task="worker:1", attempt=1), running)
        else:
            wait_until(lambda: launch.records("task_started", task="chief:0", attempt=1), running)
        before = launch.log("chief:0").count("\nstep ")
        wait_until(lambda: launch.log("chief:0").count("\nstep ") > before + 2, running)
        err = finish(launch, running)
    assert not watch.clashes()
    assert "host h3 was lost" in err
    assert ("the job goes on without it" in err) == comes_back
    times = {"chief:0": 2, "ps:0": 2, "worker:0": 2, "worker:1": 1}
    assert {task: len(hosts) for task, hosts in starts(launch).items()} == {
        task: 3 - count if comes_back else count for task, count in times.items()
    }
