"""`up -d --on kubernetes`: the supervisor in a pod, on a stand-in for a cluster. tests/kubernetes has a real one."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from features.kubernetes import kubectl_stub
from support.launch import Launch
from support.processes import command_of, processes_with
from support.specs import tflaunch, written
from support.waiting import PATIENCE, wait_until
from tflaunch.errors import EXIT_USAGE

WAITS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("here", os.getpid(), flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.1)
print("secret", os.environ.get("TOKEN"), flush=True)
sys.exit(int(os.environ["CODE"]))
"""


class Cluster:
    """The stand-in, and a spec for it."""

    def __init__(self, directory: Path, launch: Launch) -> None:
        self.state = directory / "cluster"
        self.state.mkdir()
        self.go = directory / "go"
        self._directory = directory
        self._launch = launch
        launch.install("kubectl", f'#!/bin/sh\nexec {sys.executable} {kubectl_stub.__file__} "$@"\n')
        launch.env["KUBECTL_STUB"] = str(self.state)

    def spec(self, code: int = 7, **fields: Any) -> Path:
        job = self._directory / "job"
        job.mkdir()
        (job / "program.py").write_text(WAITS)
        about = {"cluster": {"worker": 2}, "strategy": "none", "command": [sys.executable, "program.py"], "sync": {}}
        python = {"hosts": {"*": {"python": sys.executable}}, "env": {"GO": str(self.go), "CODE": str(code)}}
        pods: dict[str, Any] = {"restart": {"max": 0}, "container": {"image": "any"}, "kubernetes": {}}
        limits = {"timeouts": {"heartbeat": PATIENCE, "lease": 10 * PATIENCE}}  # a busy machine answers late
        return written(job, {**about, **python, **pods, **limits, **fields})

    def start(self, **fields: Any) -> str:
        begun = self._launch.up(self.spec(**fields), "-d", "--no-preflight")
        assert begun.returncode == 0, begun.stderr + self.logs()
        return begun.stdout.strip()

    def objects(self, kind: str) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in (self.state / "objects").glob(f"{kind}.*.json")]

    def launcher(self) -> dict[str, Any]:
        """Return the newest pod of the supervisor."""
        pods = [pod for pod in self.objects("Pod") if "job-name" in pod["metadata"]["labels"]]
        return max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def logs(self) -> str:
        return "".join(path.read_text() for path in self.state.glob("pods/*/log"))

    def tasks(self) -> list[int]:
        return sorted(
            process.pid for process in processes_with("GO", str(self.go)) if command_of(process)[-1:] == ["program.py"]
        )

    def end(self) -> None:
        for process in processes_with("KUBECTL_STUB", str(self.state)):
            with suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.fixture
def cluster(launch: Launch, tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path, launch)
    try:
        yield found
    finally:
        found.end()


def test_commands_reach_a_run_and_its_files_come_home(cluster: Cluster, launch: Launch) -> None:
    launch.env["HIDDEN"] = "xyzzy"
    run = cluster.start(secrets={"TOKEN": {"env": "HIDDEN"}})
    shown = launch.status()
    assert [task["state"] for task in shown["tasks"]] == ["running", "running"]
    logged = [path.read_text() for path in cluster.state.glob("pods/*worker*/log")]
    assert [text.startswith("here ") for text in logged] == [True, True], "`kubectl logs POD` shows the task"
    refused = launch.run("report", run, code=2)
    assert "is supervised in its cluster" in refused.stderr
    cluster.go.touch()
    assert launch.run("wait").returncode == 7, cluster.logs()
    # The first to end stops the other, which may not have printed it.
    assert any("secret xyzzy" in launch.log(f"worker:{index}") for index in range(2))
    assert launch.run("wait", run).returncode == 7
    assert not list((cluster.state / "objects").iterdir())
    assert launch.run("report", run).returncode == 0


def test_a_supervisor_is_replaced(cluster: Cluster, launch: Launch) -> None:
    """In its pod if it is killed, and in another one if that is deleted: the run directory is on a volume."""
    cluster.start(code=0, kubernetes={"run_volume": "runs"})
    tasks, first = cluster.tasks(), cluster.launcher()
    (parent,) = psutil.Process(first["pid"]).children()
    (supervisor,) = parent.children()
    supervisor.send_signal(signal.SIGKILL)
    resumed(launch, 2)
    assert cluster.launcher()["metadata"]["uid"] == first["metadata"]["uid"]
    launch.paste(f"kubectl delete pod {first['metadata']['name']}")
    resumed(launch, 4)
    assert cluster.launcher()["metadata"]["uid"] != first["metadata"]["uid"]
    assert (len(tasks), cluster.tasks()) == (2, tasks)
    cluster.go.touch()
    assert launch.run("wait").returncode == 0, cluster.logs()
    assert "here" in launch.log("worker:0")


@pytest.mark.thorough
def test_a_supervisor_that_ends_at_each_start_is_said(cluster: Cluster, launch: Launch) -> None:
    """With how the last of three has ended; the run ends, too."""
    cluster.start()
    (parent,) = psutil.Process(cluster.launcher()["pid"]).children()
    killed: set[psutil.Process] = set()
    for _ in range(3):
        (supervisor,) = wait_until(partial(children_but, parent, killed), otherwise="there is no other supervisor")
        supervisor.kill()
        killed.add(supervisor)
    ended = launch.run("wait", code=125)
    assert "the supervisor has ended at each of 3 starts; the last: SIGKILL" in ended.stderr


def children_but(parent: psutil.Process, others: set[psutil.Process]) -> set[psutil.Process]:
    return {*parent.children()} - others


def resumed(launch: Launch, count: int) -> None:
    """Wait until so many links were restored."""
    wait_until(lambda: launch.run("events").stdout.count("link_restored") >= count, otherwise="it did not resume")


@pytest.mark.parametrize(
    ("fields", "arguments", "is_taken"),
    [
        ({"kubernetes": {}}, [], True),
        ({}, ["--on", "kubernetes"], True),
        ({}, [], False),
        ({"kubernetes": {}}, ["--on", "slurm"], False),
    ],
)
def test_an_image_is_for_pods(launch: Launch, fields: dict[str, Any], arguments: list[str], is_taken: bool) -> None:
    spec = launch.spec(cluster={"worker": 1}, strategy="none", command=["true"], workdir="/", **fields)
    here: dict[str, Any] = {"home": launch.home, "cwd": launch.directory, "KUBECONFIG": str(launch.directory / "none")}
    ended = tflaunch("up", spec, "--image", "busybox", *arguments, **here)
    assert ("--image has no effect here; add --on kubernetes" not in ended.stderr) is is_taken, ended.stderr
    assert ended.returncode != 0
    assert (ended.returncode == EXIT_USAGE) is not is_taken, ended.stderr
