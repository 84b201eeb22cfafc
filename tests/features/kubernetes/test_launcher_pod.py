"""`up -d --on kubernetes`: the supervisor in a pod, on a stand-in for a cluster. tests/kubernetes has a real one."""

from __future__ import annotations

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

pytestmark = pytest.mark.cli
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
        stub = directory / "bin" / "kubectl"
        stub.parent.mkdir()
        stub.write_text(f'#!/bin/sh\nexec {sys.executable} {kubectl_stub.__file__} "$@"\n')
        stub.chmod(0o755)
        launch.env |= {"KUBECTL_STUB": str(self.state), "PATH": f"{stub.parent}:{launch.env['PATH']}"}

    def spec(self, code: int = 7, **fields: Any) -> Path:
        job = self._directory / "job"
        job.mkdir()
        (job / "program.py").write_text(WAITS)
        about = {"cluster": {"worker": 2}, "strategy": "none", "command": [sys.executable, "program.py"], "sync": {}}
        python = {"hosts": {"*": {"python": sys.executable}}, "env": {"GO": str(self.go), "CODE": str(code)}}
        pods: dict[str, Any] = {"restart": {"max": 0}, "container": {"image": "any"}, "kubernetes": {}}
        return written(job, {**about, **python, **pods, **fields})

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
    refused = launch.run("report", run)
    assert refused.returncode == 2
    assert "is supervised in its cluster" in refused.stderr
    cluster.go.touch()
    assert launch.run("wait").returncode == 7, cluster.logs()
    # The first to end stops the other, which may not have printed it.
    assert any("secret xyzzy" in launch.log(f"worker:{index}") for index in range(2))
    assert launch.run("wait", run).returncode == 7
    assert not list((cluster.state / "objects").iterdir())
    assert launch.run("report", run).returncode == 0


CUT = """#!/bin/sh
case "$*" in
*" exec "*"tflaunch {verb}"*) timeout 1 {kubectl} "$@"; touch {cut}; exit {code} ;;
*) exec {kubectl} "$@" ;;
esac
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("verb", "code"), [("wait", 0), ("attach", 137)])
def test_what_carries_a_command_has_no_say_in_its_exit_code(
    verb: str, code: int, cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """A kubectl that loses its stream just before the end of a run may exit with 0 all the same."""
    run = cluster.start()
    stub, cut = tmp_path / "bin" / "kubectl", tmp_path / "cut"
    stub.rename(stub.with_name("real"))
    stub.write_text(CUT.format(verb=verb, code=code, cut=cut, kubectl=stub.with_name("real")))
    stub.chmod(0o755)
    following = launch.start(verb, run)
    wait_until(cut.exists)
    cluster.go.touch()
    _, errors = following.communicate(timeout=PATIENCE)
    assert following.returncode == 7, errors
    assert launch.run("wait", run).returncode == 7


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
    cluster.start(timeouts={"lease": "5s"})
    (parent,) = psutil.Process(cluster.launcher()["pid"]).children()
    killed: set[psutil.Process] = set()
    for _ in range(3):
        (supervisor,) = wait_until(partial(children_but, parent, killed), otherwise="there is no other supervisor")
        supervisor.kill()
        killed.add(supervisor)
    ended = launch.run("wait")
    assert ended.returncode == 125
    assert "the supervisor has ended at each of 3 starts; the last: SIGKILL" in ended.stderr


def children_but(parent: psutil.Process, others: set[psutil.Process]) -> set[psutil.Process]:
    return {*parent.children()} - others


def resumed(launch: Launch, count: int) -> None:
    """Wait until so many links were restored."""
    wait_until(lambda: launch.run("events").stdout.count("link_restored") >= count, otherwise="it did not resume")


@pytest.mark.thorough
def test_without_a_volume_the_next_pod_begins_the_job_again(cluster: Cluster, launch: Launch) -> None:
    """In new pods, so that no task of before is beside it."""
    run = cluster.start(code=0, timeouts={"lease": "10s"})
    tasks, first = cluster.tasks(), cluster.launcher()
    launch.paste(f"kubectl delete pod {first['metadata']['name']}")
    wait_until(
        lambda: len(cluster.tasks()) == 2 and not {*tasks} & {*cluster.tasks()}, otherwise="it did not begin again"
    )
    said = f"the pod that supervised {run} is gone, and the run directory with it (kubernetes.run_volume would keep it)"
    assert said in cluster.logs()
    cluster.go.touch()
    assert launch.run("wait").returncode == 0, cluster.logs()
    assert not list((cluster.state / "objects").iterdir())


@pytest.mark.thorough
def test_the_end_of_a_run_is_kept_for_a_while(cluster: Cluster, launch: Launch) -> None:
    run = cluster.start(kubernetes={"keep": "1s"})
    cluster.go.touch()
    wait_until(lambda: cluster.objects("Job")[0]["spec"]["backoffLimit"] == 0, otherwise="the run did not end")
    ended = cluster.launcher()
    wait_until((Path(ended["place"]) / "exit").exists, otherwise="the pod did not end")
    assert (Path(ended["place"]) / "exit").read_text() == "7"
    late = launch.run("wait", run)
    assert late.returncode == 7
    assert "its directory was kept for 1 s (kubernetes.keep)" in late.stderr
    assert launch.run("down", run).returncode == 0
    assert not list((cluster.state / "objects").iterdir())


@pytest.mark.thorough
def test_a_run_whose_job_was_deleted_is_said_to_be(cluster: Cluster, launch: Launch) -> None:
    run = cluster.start()
    launch.paste(f"kubectl delete job cluster-{run[-4:]}-launcher")
    gone = launch.run("wait", run)
    assert gone.returncode == 125
    assert f"the Job of run {run} was deleted" in gone.stderr


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
