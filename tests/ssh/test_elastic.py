"""Jobs that continue with fewer hosts after one loses power, and grow again when it is back."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from support.launch import LONG, SHARED, Launch, read_until
from support.netns_hosts import Bed
from support.specs import REPOSITORY
from support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.ssh

PROGRAMS = REPOSITORY / "tests" / "training" / "programs"
QUICK = {"connect": 10, "lease": 9, "grace": 0.5}
"""A third of the lease is how long an agent may be silent, even at its start on a busy machine."""
AT_ONCE = {"max": 3, "backoff": [0, 0]}

COUNT = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
role, index = os.environ["TFLAUNCH_TASK"].split(":")
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind(("", int(config["cluster"][role][int(index)].rpartition(":")[2])))
server.listen()
print("attempt", os.environ["TFLAUNCH_ATTEMPT"], "of", len(config["cluster"]["worker"]), "workers", flush=True)
while not os.path.exists("enough") or role in os.environ.get("SERVERS", ""):
    time.sleep(0.05)
"""


def on(bed: Bed, launch: Launch) -> Launch:
    """Run tflaunch on the controller, as a user who knows the hosts."""
    launch.prefix = bed.run_prefix
    launch.env["HOME"] = str(bed.client_home)
    return launch


def start(bed: Bed, launch: Launch, cluster: dict[str, list[str]], **fields: Any) -> subprocess.Popen[str]:
    """Start a job that shrinks and grows."""
    names = dict.fromkeys(host for hosts in cluster.values() for host in hosts)
    common = {
        "cluster": cluster,
        "hosts": {name: {"python": sys.executable} for name in names},
        "command": ["python", "-c", COUNT],
        "restart": AT_ONCE,
        "timeouts": QUICK,
    }
    return on(bed, launch).start("up", launch.spec(**{**common, **fields}))


def finish(running: subprocess.Popen[str]) -> str:
    """Wait for success; return what tflaunch printed."""
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, err
    return err


def wait_for(running: subprocess.Popen[str], launch: Launch, kind: str, **fields: object) -> None:
    """Wait until the journal has such a record."""
    wait_until(lambda: launch.records(kind, **fields), running)


def starts(launch: Launch, task: str) -> list[int]:
    """Return the attempts of a task that were started."""
    return [r["attempt"] for r in launch.records() if r["kind"] == "task_started" and r["task"] == task]


@pytest.mark.parametrize("lost", [3, 1], ids=["the last", "the first"])
def test_a_mirrored_gang_shrinks_and_grows(bed: Bed, launch: Launch, lost: int) -> None:
    """Three workers, two while a host is off, three again; never two attempts at a time."""
    elastic = {"min_workers": 2, "retry": "5s"}
    with bed.watch() as watch:
        running = start(bed, launch, {"worker": ["h1", "h2", "h3"]}, elastic=elastic)
        read_until(running, "attempt 0 of 3 workers", 3)
        bed.power_off(lost)
        read_until(running, "of 2 workers", 2)
        bed.power_on(lost)
        read_until(running, "of 3 workers", 3)
        (launch.directory / "enough").touch()
        err = finish(running)
    assert not watch.clashes()
    assert f"host h{lost} was lost" in err
    assert f"restart 1 starts without h{lost}: 2 tasks of 3" in err
    assert f"h{lost} is back; the gang restarts with it" in err
    assert "done: 3 tasks, after 2 restarts" in err
    assert not [sample for sample in watch.samples if len({one.attempt for one in sample.living}) > 1]


def test_too_few_workers_wait_for_the_host(bed: Bed, launch: Launch) -> None:
    """With `min_workers` 3 nothing starts without it; if it does not return the job fails with 125."""
    limits = {"elastic": {"min_workers": 3, "retry": "5s"}, "timeouts": {**QUICK, "lost_host": 10}}
    running = start(bed, launch, {"worker": ["h1", "h2", "h3"]}, **limits)
    read_until(running, "attempt 0 of 3 workers", 3)
    bed.power_off(3)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 125, err
    assert starts(launch, "worker:0") == [0]


def test_a_parameter_server_job_starts_again_without_a_host_that_fell_silent(bed: Bed, launch: Launch) -> None:
    """The worker's connection was never closed, so the chief would wait for it indefinitely."""
    cluster = {"chief": ["h1"], "ps": ["h1"], "worker": ["h2", "h3"]}
    running = start(bed, launch, cluster, elastic={"min_workers": 1, "retry": "1h"}, env={"SERVERS": "worker ps"})
    wait_until(lambda: len(launch.records("port_opened")) == 4, running)
    bed.power_off(3)
    read_until(running, "of 1 workers", 3)
    (launch.directory / "enough").touch()
    err = finish(running)
    assert "without h3: 3 tasks of 4" in err


def test_without_elastic_a_lost_ps_worker_waits_for_its_host(bed: Bed, launch: Launch) -> None:
    """No budget is charged, and no other task is restarted."""
    cluster = {"chief": ["h1"], "ps": ["h1"], "worker": ["h2", "h3"]}
    running = start(bed, launch, cluster, restart={"max": 1, "backoff": [0, 0]}, env={"SERVERS": "worker ps"})
    wait_until(lambda: len(launch.records("port_opened")) == 4, running)
    bed.power_off(3)
    wait_for(running, launch, "link_lost", host="h3")
    bed.power_on(3)
    read_until(running, "worker:1 | attempt 1 of 2 workers")
    (launch.directory / "enough").touch()
    finish(running)
    for task in ("chief:0", "ps:0", "worker:0"):
        assert starts(launch, task) == [0]


# ---- with TensorFlow


def weights(text: str) -> dict[int, int]:
    """Return the weight after every completed step."""
    return {int(step): int(weight) for step, weight in re.findall(r"^step (\d+): weight (\d+)$", text, re.MULTILINE)}


@pytest.mark.tensorflow
def test_mirrored_training_goes_on_with_two_hosts_and_then_with_three(bed: Bed, launch: Launch) -> None:
    """Every step adds the number of workers to a weight: 3, 2, then 3; no step is lost or done twice."""
    ending = "if attempt and strategy.num_replicas_in_sync == 3: sys.exit()"
    command = ["python", str(PROGRAMS / "mirrored.py"), "0", ending]
    fields = {"command": command, "env": {"TF_CPP_MIN_LOG_LEVEL": "2"}, "elastic": {"min_workers": 2, "retry": "15s"}}
    launch.preload = SHARED
    with bed.watch() as watch:
        running = start(bed, launch, {"worker": ["h1", "h2", "h3"]}, **fields)
        read_until(running, "worker:0 | step 3")
        bed.power_off(3)
        read_until(running, "attempt 1 begins at step")
        read_until(running, "worker:0 | step")
        bed.power_on(3)
        finish(running)
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
@pytest.mark.parametrize("comes_back", [True, *([False] if LONG else [])])
def test_parameter_server_training_goes_on_without_the_host_of_a_worker(
    bed: Bed, launch: Launch, comes_back: bool
) -> None:
    """The worker returns alone with its host; if that stays away, the others resume from the checkpoint.

    The latter in `make nightly`, as `test_a_parameter_server_job_starts_again_without_a_host_that_fell_silent` and
    `test_a_lost_chief_or_ps_takes_all_along` check both halves of it.
    """
    cluster = {"chief": ["h1"], "ps": ["h1"], "worker": ["h2", "h3"]}
    fields = {
        "command": ["python", str(PROGRAMS / "chief.py")],
        "roles": {"worker": {"server": True}, "ps": {"server": True}},
        "env": {"TF_CPP_MIN_LOG_LEVEL": "2"},
        "elastic": {"min_workers": 1, "retry": "5s"},
    }
    launch.preload = SHARED
    with bed.watch() as watch:
        running = start(bed, launch, cluster, **fields)
        read_until(running, "step 3\n")
        bed.power_off(3)
        if comes_back:
            wait_for(running, launch, "link_lost", host="h3")
            bed.power_on(3)
            wait_for(running, launch, "task_started", task="worker:1", attempt=1)
        else:
            wait_for(running, launch, "task_started", task="chief:0", attempt=1)
        before = launch.log("chief:0").count("\nstep ")
        wait_until(lambda: launch.log("chief:0").count("\nstep ") > before + 2, running)
        (launch.directory / "enough").touch()
        err = finish(running)
    assert not watch.clashes()
    assert "host h3 was lost" in err
    assert ("the job goes on without it" in err) == comes_back
    for task in ("chief:0", "ps:0", "worker:0"):
        assert starts(launch, task) == ([0] if comes_back else [0, 1])
    assert starts(launch, "worker:1") == ([0, 1] if comes_back else [0])
