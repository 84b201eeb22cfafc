"""`up -d --on kubernetes` on a real Kubernetes: the supervisor is a Job, which outlives this machine's processes."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from support import checkpoint_program
from support.kube_cluster import IMAGE, LAUNCHER_IMAGE, Kube
from support.launch import Launch
from support.specs import written

pytestmark = pytest.mark.kubernetes
USER = "system:serviceaccount:default:cluster-launcher"
LAUNCHER = "--selector=job-name=cluster-launcher"
GOAL = "/tmp/goal"
REASON_WITHIN = 15.0  # seconds
ENDS_WHEN_TOLD = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
print("here", os.environ["TFLAUNCH_ATTEMPT"], os.environ.get("TOKEN"), flush=True)
time.sleep(1000)
"""


def start(launch: Launch, directory: Path, program: str = ENDS_WHEN_TOLD, **fields: Any) -> str:
    """Start a run whose tasks exit with code 7 on USR1 or run another program, and return its name."""
    (directory / "job").mkdir()
    (directory / "job" / "program.py").write_text(program)
    data = {
        "cluster": {"worker": 2},
        "strategy": "none",
        "command": ["python3", "program.py"],
        "sync": {},
        "restart": {"max": 0},
        "timeouts": {"lease": "2m"},
        "container": {"image": IMAGE},
        "kubernetes": {"launcher_image": LAUNCHER_IMAGE},
        **fields,
    }
    begun = launch.up(written(directory / "job", data), "-d")
    assert begun.returncode == 0, begun.stderr
    return begun.stdout.strip()


def pids(launch: Launch) -> list[int]:
    """Return the PIDs of the tasks, which must be running."""
    tasks = launch.status()["tasks"]
    assert {task["state"] for task in tasks} == {"running"}, tasks
    return [task["pid"] for task in tasks]


def end_tasks(launch: Launch) -> None:
    """Let the tasks exit with code 7."""
    told = launch.run("kill", "-s", "USR1", "worker")
    assert told.returncode == 0, told.stderr


def test_a_run_outlives_the_operators_processes(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    launch.env["HIDDEN"] = "xyzzy"
    run = start(launch, tmp_path, secrets={"TOKEN": {"env": "HIDDEN"}})
    watching = [launch.start(verb, run) for verb in ("wait", "attach")]
    time.sleep(3)
    for process in watching:
        process.kill()
        process.communicate()
    end_tasks(launch)
    ended = launch.run("wait", run)
    assert ended.returncode == 7, ended.stderr
    assert "here 0 xyzzy" in launch.log("worker:1")
    kube.wait_until_empty()
    assert launch.run("wait", run).returncode == 7  # from the files that are here now


def test_a_launcher_pod_that_is_deleted_is_replaced_and_tasks_do_not_notice(
    kube: Kube, launch: Launch, tmp_path: Path
) -> None:
    run = start(launch, tmp_path)
    before = pids(launch)
    old = kube.kubectl("get", "pods", LAUNCHER, "--output=name")
    kube.kubectl("delete", old, "--wait=false")
    kube.wait_until(lambda: launch.run("events", run).stdout.count("link_restored") == 2, "it was not resumed")
    assert kube.kubectl("get", "pods", LAUNCHER, "--output=name") != old
    assert pids(launch) == before
    end_tasks(launch)
    assert launch.run("attach", run).returncode == 7
    assert launch.log("worker:0").count("here") == 1


def test_a_launcher_pod_that_is_killed_is_replaced_and_tasks_do_not_notice(
    kube: Kube, launch: Launch, tmp_path: Path
) -> None:
    run = start(launch, tmp_path)
    before = pids(launch)
    pod = kube.kubectl("get", "pods", LAUNCHER, "--output=name")
    kube.kubectl("delete", pod, "--force", "--grace-period=0")
    kube.wait_until(lambda: launch.run("events", run).stdout.count("link_restored") == 2, "it was not resumed")
    assert pids(launch) == before
    down = launch.run("down", run)
    assert down.returncode == 0, down.stderr
    assert f"stopped {run}" in down.stderr
    kube.wait_until_empty()


def test_a_copy_pod_that_is_deleted_is_filled_again_with_checkpoints(
    kube: Kube, launch: Launch, tmp_path: Path
) -> None:
    """The pod with the copy, then the launcher's, then those of the tasks are lost: training goes on where it was."""
    run = start(
        launch,
        tmp_path,
        Path(checkpoint_program.__file__).read_text(),
        command=["python3", "program.py", "state", "10", "0.1", GOAL],
        checkpoints={"dir": "state", "copies": 1},
        restart={"max": 3, "backoff": [0, 0]},
    )

    def holds_checkpoint() -> bool:
        look = ["exec", "cluster-run-copy-0", "--", "cat", "/tflaunch-state/run/checkpoints/index.json"]
        return "ckpt-" in kube.kubectl(*look, may_fail=True)

    def has_restarted() -> bool:
        logs = [launch.run("logs", run, f"worker:{index}").stdout for index in range(2)]
        return [log.count("begins at step") for log in logs] == [2, 2]

    kube.wait_until(holds_checkpoint, "no checkpoint was copied")
    kube.kubectl("delete", "pod", "cluster-run-copy-0", "--wait=true")
    kube.wait_until(holds_checkpoint, "the new pod did not get the checkpoint")
    kube.kubectl("delete", "pod", LAUNCHER, "--wait=false")
    kube.wait_until(lambda: launch.run("events", run).stdout.count("link_restored") == 2, "it was not resumed")
    kube.kubectl("delete", "pod", "cluster-worker-0", "cluster-worker-1", "--force", "--grace-period=0")
    kube.wait_until(has_restarted, "the tasks did not restart")
    for index in range(2):
        kube.kubectl("exec", f"cluster-worker-{index}", "--", "sh", "-c", f"echo 0 > {GOAL}")
    ended = launch.run("wait", run)
    assert ended.returncode == 0, ended.stderr
    for index in range(2):
        first, second = re.findall(r"begins at step (\d+)", launch.log(f"worker:{index}"))
        assert (first, int(second) >= 10) == ("0", True)


def test_deleting_the_job_deletes_everything(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    run = start(launch, tmp_path)
    kube.kubectl("delete", "job", "cluster-launcher")
    kube.wait_until_empty()
    gone = launch.run("ps", run)
    assert gone.returncode == 125
    assert f"the Job of run {run} was deleted" in gone.stderr


def test_the_launcher_may_run_commands_in_pods_of_its_run_alone(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    start(launch, tmp_path)

    def may(*words: str) -> bool:
        return kube.kubectl("auth", "can-i", *words, f"--as={USER}", may_fail=True) == "yes"

    assert may("create", "pods/cluster-worker-0", "--subresource=exec")
    assert not may("create", "pods/other-0", "--subresource=exec")
    assert not may("create", "pods")
    assert not may("get", "secrets")
    assert not may("delete", "pods/other-0")
    assert launch.run("down").returncode == 0


def test_an_image_without_tflaunch_is_named(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    spec = {
        "cluster": {"worker": 1},
        "strategy": "none",
        "command": ["python3", "-V"],
        "workdir": "/",
        "container": {"image": IMAGE},
        "kubernetes": {},
    }
    begun = time.monotonic()
    refused = launch.up(written(tmp_path, spec), "-d")
    took = time.monotonic() - begun
    assert refused.returncode == 3
    assert f"image {IMAGE!r} has no tflaunch" in refused.stderr
    assert json.loads(launch.run("ls", "--json").stdout)[0]["state"] != "elsewhere"
    kube.wait_until_empty()
    assert took <= REASON_WITHIN
