"""Hosts that lose power, and spare hosts that take their place."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from support.launch import LONG, Launch, read_until
from support.netns_hosts import Bed
from support.specs import REPOSITORY
from support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.ssh

PROGRAMS = REPOSITORY / "tests" / "training" / "programs"
QUICK = {"connect": 30, "heartbeat": 5, "lease": 12, "grace": 0.5}

COUNT = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
role, index = os.environ["TFLAUNCH_TASK"].split(":")
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind(("", int(config["cluster"][role][int(index)].rpartition(":")[2])))
server.listen()
print("attempt", os.environ["TFLAUNCH_ATTEMPT"], "on", os.environ["PLACE"], flush=True)
while not os.path.exists("enough") or role in os.environ.get("SERVERS", ""):
    time.sleep(0.05)
"""


def start(bed: Bed, launch: Launch, cluster: dict[str, list[str]], **fields: Any) -> subprocess.Popen[str]:
    """Start a job on the controller whose tasks say on which host they are; the third host is spare."""
    launch.prefix = bed.run_prefix
    launch.env["HOME"] = str(bed.client_home)
    hosts = {bed.name(i): {"python": sys.executable, "env": {"PLACE": bed.name(i)}} for i in bed.hosts}
    common = {
        "cluster": cluster,
        "hosts": hosts,
        "spares": 1,
        "command": ["python", "-c", COUNT],
        "timeouts": QUICK,
        "env": {"SERVERS": "worker ps"} if "ps" in cluster else {},
    }
    return launch.start("up", launch.spec(**{**common, **fields}))


def finish(launch: Launch, running: subprocess.Popen[str]) -> str:
    """End the tasks and wait for success; return what tflaunch printed."""
    (launch.directory / "enough").touch()
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
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
        running = start(bed, launch, {"worker": ["h1", "h2"]}, restart={"backoff": ["1h", "1h"]})
        read_until(running, "attempt 0 on", 2)
        bed.power_off(2)
        output = read_until(running, "attempt 1 on", 2)
        assert "worker:1 | attempt 1 on h3" in output
        status = json.loads(launch.run("ps", launch.run_directory().name, "--json").stdout)
        bed.power_on(2)
        wait_until(lambda: len(launch.records("host_joined", host="h2")) == 2, running)
        bed.power_off(3)
        output = read_until(running, "attempt 2 on", 2)
        assert "worker:1 | attempt 2 on h2" in output
        err = finish(launch, running)
    assert not watch.clashes()
    assert starts(launch) == {"worker:0": ["h1"] * 3, "worker:1": ["h2", "h3", "h2"]}
    (moved,) = (task for task in status["tasks"] if task["task"] == "worker:1")
    assert (moved["host"], moved["moved_from"]) == ("h3", "h2")
    assert {host["host"]: (host["is_spare"], host["replaces"]) for host in status["hosts"]} == {
        "h1": (False, None),
        "h2": (True, None),
        "h3": (False, "h2"),
    }
    assert "worker:1 moves from h2 to h3; 0 spare hosts left" in err
    assert "h2 is a spare host now" in err
    assert "worker:1 moves from h3 to h2; 0 spare hosts left" in err


def test_a_killed_supervisor_knows_where_tasks_are(bed: Bed, launch: Launch) -> None:
    """It is killed when it has decided to move a task; the one that takes over starts it there, once."""
    with bed.watch() as watch:
        running = start(bed, launch, {"worker": ["h1", "h2"]}, timeouts={**QUICK, "lease": 20})
        read_until(running, "attempt 0 on", 2)
        bed.power_off(2)
        wait_until(lambda: launch.records("host_lost") or launch.records("hold_ports", host="h3"), running)
        running.kill()
        running.communicate(timeout=PATIENCE)
        running = launch.start("up", "--resume", launch.run_directory().name)
        wait_until(lambda: starts(launch).get("worker:1") == ["h2", "h3"], running)
        err = finish(launch, running)
    assert not watch.clashes()
    assert starts(launch)["worker:1"] == ["h2", "h3"]
    assert "worker:1 moved from h2 to h3" in err


def test_a_spare_host_that_is_not_there_is_reported(bed: Bed, launch: Launch) -> None:
    """The job starts without it, and ends well."""
    bed.power_off(3)
    running = start(bed, launch, {"worker": ["h1", "h2"]})
    read_until(running, "attempt 0 on", 2)
    err = finish(launch, running)
    assert "warning: the spare host h3 is not there: " in err


# ---- with TensorFlow


@pytest.mark.tensorflow
@pytest.mark.skipif(not LONG, reason="shells show the move, and trainings on elastic hosts a new gang")
@pytest.mark.parametrize("number", range(5))
def test_mirrored_training_goes_on_on_the_spare_host(bed: Bed, launch: Launch, number: int) -> None:
    """From its checkpoint, with TensorFlow imported before."""
    ending = "if attempt and step > 10: sys.exit()"
    fields = {"command": ["python", str(PROGRAMS / "mirrored.py"), "0", ending], "preload": ["tensorflow"]}
    running = start(bed, launch, {"worker": ["h1", "h2"]}, env={"TF_CPP_MIN_LOG_LEVEL": "2", "PLACE": ""}, **fields)
    read_until(running, "worker:0 | step 3")
    bed.power_off(2)
    err = finish(launch, running)
    assert starts(launch) == {"worker:0": ["h1", "h1"], "worker:1": ["h2", "h3"]}
    assert launch.records("task_started", host="h3")[0]["preload"] == "tensorflow", err
    assert re.search(r"attempt 1 begins at step [1-9]", launch.log("worker:1"))
