"""`up -d --on kubernetes` on a real Kubernetes: the supervisor is a Job, which outlives this machine's processes."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import checkpoint_program
from support.kube_cluster import IMAGE, LAUNCHER_IMAGE, Kube
from support.launch import Launch, read_until
from support.specs import written

USER = "system:serviceaccount:default:{}"
LAUNCHER = "--selector=tflaunch/launcher"
GOAL = "/tmp/goal"
SHORT: dict[str, Any] = {
    "cluster": {"worker": 1}, "strategy": "none", "command": ["python3", "-V"], "container": {"image": IMAGE},
}  # fmt: skip
ENDS_WHEN_TOLD = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
print("here", os.environ["TFLAUNCH_ATTEMPT"], os.environ.get("TOKEN"), flush=True)
time.sleep(9999)
"""


def start(launch: Launch, directory: Path, program: str = ENDS_WHEN_TOLD, kubernetes: Any = (), **fields: Any) -> str:
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
        "kubernetes": {"launcher_image": LAUNCHER_IMAGE, **dict(kubernetes)},
        **fields,
    }
    begun = launch.succeed("up", written(directory / "job", data), "-d")
    return begun.stdout.strip()


def job(run: str) -> str:
    return f"cluster-{run[-4:]}-launcher"


def pod(run: str, index: int) -> str:
    return f"cluster-{run[-4:]}-worker-{index}"


def pids(launch: Launch) -> list[int]:
    """Return the PIDs of the tasks, which must be running."""
    tasks = launch.status()["tasks"]
    assert {task["state"] for task in tasks} == {"running"}, tasks
    return [task["pid"] for task in tasks]


def end_tasks(launch: Launch) -> None:
    launch.succeed("kill", "-s", "USR1", "worker")


def test_a_run_outlives_the_operators_processes(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    launch.env["HIDDEN"] = "xyzzy"
    run = start(launch, tmp_path, secrets={"TOKEN": {"env": "HIDDEN"}})
    watching = [launch.start(verb, run) for verb in ("wait", "attach")]
    read_until(watching[1], "here", 2)
    for process in watching:
        process.kill()
        process.communicate()
    home = launch.env["TFLAUNCH_HOME"]
    launch.env["TFLAUNCH_HOME"] = f"{home}-2"
    (listed,) = json.loads(launch.run("ls", "--on", "kubernetes", "--json").stdout)
    assert listed["run"] == run
    end_tasks(launch)
    launch.env["TFLAUNCH_HOME"] = home
    ended = launch.run("wait", run, code=7)
    assert "/tflaunch/" not in ended.stderr
    assert "here 0 xyzzy" in launch.log("worker:1")
    kube.wait_until_empty()
    assert launch.run("wait", run).returncode == 7  # from the files that are here now


@pytest.fixture
def volume(kube: Kube, tmp_path: Path) -> Iterator[str]:
    """Return the name of a PersistentVolumeClaim; its volume is a directory of the node."""
    path = tmp_path / "volume"
    path.mkdir()
    path.chmod(0o777)
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    size = {"storage": "1Gi"}
    things = [
        {"kind": "PersistentVolume", "metadata": {"name": "runs"},
         "spec": {**shared, "capacity": size, "hostPath": {"path": str(path)}}},
        {"kind": "PersistentVolumeClaim", "metadata": {"name": "runs"},
         "spec": {**shared, "volumeName": "runs", "resources": {"requests": size}}},
    ]  # fmt: skip
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", **one} for one in things]})
    kube.kubectl("create", "--filename=-", given=given)
    yield "runs"
    kube.kubectl("delete", "pvc", "runs", "--wait=false")
    kube.kubectl("delete", "pv", "runs", "--wait=false")
    kube.wait_until(lambda: not kube.kubectl("get", "pv,pvc", "--output=name"), "the volume was not deleted")


def launcher_pod(kube: Kube) -> str:
    """Return the launcher's pods that are not being deleted, as words for kubectl."""
    pods = json.loads(kube.kubectl("get", "pods", LAUNCHER, "--output=json"))["items"]
    return " ".join(f"pod/{pod['metadata']['name']}" for pod in pods if "deletionTimestamp" not in pod["metadata"])


@pytest.mark.parametrize("options", [["--wait=false"], ["--force", "--grace-period=0"]], ids=["deleted", "killed"])
def test_with_a_volume_the_next_launcher_pod_resumes_the_run(
    options: list[str], kube: Kube, launch: Launch, volume: str, tmp_path: Path
) -> None:
    run = start(launch, tmp_path, kubernetes={"run_volume": volume})
    before = pids(launch)
    old = launcher_pod(kube)
    kube.kubectl("delete", old, *options)
    kube.wait_until(lambda: launch.run("events", run).stdout.count("link_restored") == 2, "it was not resumed")
    assert launcher_pod(kube) != old
    assert pids(launch) == before  # the tasks have not noticed
    end_tasks(launch)
    assert launch.run("attach", run).returncode == 7
    assert launch.log("worker:0").count("here") == 1
    kube.wait_until_empty()
    assert (tmp_path / "volume" / "home" / "runs" / run / "events.jsonl").exists()


def test_without_a_volume_the_next_launcher_pod_begins_the_job_again_from_its_checkpoints(
    kube: Kube, launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    run = start(
        launch,
        tmp_path,
        Path(checkpoint_program.__file__).read_text(),
        command=["python3", "program.py", "/state", "10", "0.1", GOAL],
        container={"image": IMAGE, "volumes": {"/state": str(tmp_path / "state")}},
    )
    old = launcher_pod(kube)
    kube.wait_until(lambda: len(list((tmp_path / "state").rglob("ckpt-*"))) >= 4, "no checkpoint was written")
    kube.kubectl("delete", old, "--wait=false")

    def has_begun_again() -> bool:
        logs = [launch.run("logs", run, f"worker:{index}").stdout for index in range(2)]
        return all("begins at step" in log and "begins at step 0\n" not in log for log in logs)

    kube.wait_until(has_begun_again, "the job did not begin again")
    said = kube.kubectl("logs", f"job/{job(run)}")
    assert "kubernetes.run_volume would keep it): the job begins again, from its checkpoints" in said
    for index in range(2):
        kube.kubectl("exec", pod(run, index), "--", "sh", "-c", f"echo 0 > {GOAL}")
    launch.succeed("wait", run)
    kube.wait_until_empty()


def test_what_nobody_fetches_is_kept_and_the_job_has_the_result(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    run = start(launch, tmp_path, kubernetes={"keep": "5s"})
    end_tasks(launch)

    def conditions() -> list[str]:
        found = json.loads(kube.kubectl("get", "job", job(run), "--output=json"))
        assert found["metadata"].get("annotations", {}).get("tflaunch/exit-code", "7") == "7"
        return [each["type"] for each in found["status"].get("conditions") or []]

    kube.wait_until(lambda: conditions() == ["Failed"], "the Job did not fail")
    late = launch.run("wait", run, code=7)
    assert f"run {run} has ended with exit code 7; its directory was kept for 5 s (kubernetes.keep)" in late.stderr
    assert "here 0" in kube.kubectl("logs", f"job/{job(run)}")
    launch.succeed("down", run)
    kube.wait_until_empty()


INTERRUPTED_CREATE = """#!/bin/sh
case "$*" in
*" create "*) {kubectl} "$@"; kill -INT $PPID; sleep 5 ;;
*) exec {kubectl} "$@" ;;
esac
"""


@pytest.mark.parametrize("options", [["-d"], ["--on", "kubernetes"]], ids=["job", "service"])
def test_ctrl_c_while_the_first_object_is_created_leaves_nothing(
    options: list[str], kube: Kube, launch: Launch, tmp_path: Path
) -> None:
    """An interrupted kubectl may have created it all the same."""
    launch.install("kubectl", INTERRUPTED_CREATE.format(kubectl=shutil.which("kubectl", path=kube.env["PATH"])))
    spec = {**SHORT, "workdir": "/", "kubernetes": {"launcher_image": LAUNCHER_IMAGE}}
    launch.up(written(tmp_path, spec), *options, code=130)
    assert json.loads(launch.run("ls", "--json").stdout) == []
    kube.wait_until_empty()


def test_the_launcher_may_run_commands_in_pods_of_its_run_alone(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    run = start(launch, tmp_path)

    def may(*words: str) -> bool:
        return kube.kubectl("auth", "can-i", *words, f"--as={USER.format(job(run))}", may_fail=True) == "yes"

    assert may("create", f"pods/{pod(run, 0)}", "--subresource=exec")
    assert not may("create", "pods/other-0", "--subresource=exec")
    assert not may("create", "pods")
    assert not may("get", "secrets")
    assert not may("delete", "pods/other-0")
    launch.succeed("down")


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"run_volume": "missing", "pending": "8s"}, 3, 'persistentvolumeclaim "missing" not found'),
        ({}, 2, "MB when packed, more than the 14 MB that a launcher in the cluster can begin with; leave files out"),
        ({"launcher_image": IMAGE}, 3, f"image {IMAGE!r} has no tflaunch"),
    ],
    ids=["no-claim", "too-much-code", "no-tflaunch"],
)
def test_a_run_that_cannot_begin_leaves_nothing(
    fields: dict[str, str], code: int, reason: str, kube: Kube, launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "job").mkdir()
    if not fields:
        (tmp_path / "job" / "data.bin").write_bytes(os.urandom(15_000_000))
    spec = {**SHORT, "sync": {}, "kubernetes": {"launcher_image": LAUNCHER_IMAGE, **fields}}
    refused = launch.up(written(tmp_path / "job", spec), "-d", code=code)
    assert reason in refused.stderr
    assert json.loads(launch.run("ls", "--json").stdout) == []
    kube.wait_until_empty()
