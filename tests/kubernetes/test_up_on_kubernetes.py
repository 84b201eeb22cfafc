"""`up --on kubernetes` on a real Kubernetes: pods are hosts, and nothing of a run is left."""

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.kube_cluster import IMAGE, Kube
from support.launch import Launch, read_errors_until, wait_for_end
from support.specs import REPOSITORY, written

WAITS = 'import time; print("here", flush=True); time.sleep(9999)'
UNTIL_GO = 'import os, time\nwhile not os.path.exists("/tmp/go"): time.sleep(0.1)'
COUNTS = """
import os, time
print("attempt", os.environ["TFLAUNCH_ATTEMPT"], flush=True)
time.sleep(9999 if os.environ["TFLAUNCH_ATTEMPT"] == "0" else 0)
"""
FILLS = "import os; data = b'x' * (200 << 20); print(len(data))"


def spec(directory: Path, program: str, workers: int = 2, **fields: Any) -> Path:
    """Write a spec whose workers run a program that is copied to their pods."""
    (directory / "job").mkdir()
    (directory / "job" / "program.py").write_text(program)
    data = {
        "cluster": {"worker": workers},
        "strategy": "none",
        "command": ["python3", "program.py"],
        "sync": {},
        "container": {"image": IMAGE},
        "kubernetes": {},
        **fields,
    }
    return written(directory / "job", data)


def pod(launch: Launch, index: int) -> str:
    return f"cluster-{launch.run_directory().name[-4:]}-worker-{index}"


def test_the_exit_code_is_the_programs_and_nothing_is_left(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    program = "import os, socket; print(socket.gethostname() + ' ' + os.environ['TF_CONFIG']); raise SystemExit(7)"
    launch.up(spec(tmp_path, program, restart={"max": 0}), code=7)
    # The first to end stops the other, which may not have printed it.
    said = {index: launch.log(f"worker:{index}").split(maxsplit=1) for index in range(2)}
    index = next(index for index, words in said.items() if words)
    name, config = said[index]
    assert name == pod(launch, index)
    first = json.loads(config)["cluster"]["worker"][0]
    assert first.startswith(f"{pod(launch, 0)}.cluster-{launch.run_directory().name[-4:]}:")
    assert not kube.kubectl("get", "statefulsets,services", "--selector=tflaunch/run", "--output=name")


QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: none}
spec: {hard: {pods: "0"}}
"""
TROUBLES: dict[str, tuple[dict[str, Any], str]] = {
    "image": ({"container": {"image": "lab/missing:1"}}, "its image 'lab/missing:1' cannot be pulled"),
    "node": (
        {"container": {"image": IMAGE, "resources": {"memory": "4000Gi"}}},
        "its pod has no node: 0/1 nodes are available: 1 Insufficient memory",
    ),
    "quota": ({"kubernetes": {"namespace": "narrow"}}, "exceeded quota"),
    "claim": (
        {"container": {"image": IMAGE, "volumes": {"/data": "no-such-claim"}}},
        'persistentvolumeclaim "no-such-claim" not found',
    ),
}


@contextmanager
def a_quota(kube: Kube, *, is_wanted: bool) -> Iterator[str]:
    """Return the namespace for a run, where no pod is allowed if ``is_wanted``."""
    if is_wanted:
        kube.kubectl("create", "namespace", "narrow")
        kube.kubectl("create", "--namespace=narrow", "--filename=-", given=QUOTA)
    yield "narrow" if is_wanted else "default"
    if is_wanted:
        kube.kubectl("delete", "namespace", "narrow")


@pytest.mark.parametrize("trouble", TROUBLES)
def test_what_a_pod_waits_for_is_told_and_ctrl_c_leaves_nothing(
    trouble: str, kube: Kube, launch: Launch, tmp_path: Path
) -> None:
    fields, words = TROUBLES[trouble]
    with a_quota(kube, is_wanted=trouble == "quota") as namespace:
        process = launch.start("up", spec(tmp_path, WAITS, **fields))
        read_errors_until(process, words)
        process.send_signal(signal.SIGINT)
        wait_for_end(process, 130)
        kube.wait_until_empty(namespace)


def test_doctor_names_what_a_pod_would_wait_for(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    fields, words = TROUBLES["image"]
    ended = launch.run("doctor", spec(tmp_path, WAITS, workers=1, **{**fields, "kubernetes": {"pending": 15}}), code=3)
    assert words in ended.stdout
    kube.wait_until_empty()


def test_a_pod_that_is_deleted_comes_back_without_a_charge(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    process = launch.start("up", spec(tmp_path, COUNTS))
    read_errors_until(process, "tflaunch: run ")
    launch.wait_for_log("worker:1", "attempt 0")
    assert "attempt 0" in kube.kubectl("logs", pod(launch, 1))
    kube.kubectl("delete", "pod", pod(launch, 1), "--wait=false")
    _, errors = wait_for_end(process)
    assert "restart 1 in " in errors  # one that is charged is "1 of 3"
    assert f"host {pod(launch, 1)}: its pod was deleted, with kubectl or by what empties its node" in errors
    assert "attempt 1" in launch.log("worker:0")


def test_an_apiserver_that_pauses_costs_the_links_alone(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    process = launch.start("up", spec(tmp_path, UNTIL_GO))
    read_errors_until(process, "tflaunch: run ")
    with kube.without("kube-apiserver"):
        read_errors_until(process, "lost the link")
    read_errors_until(process, "is restored")
    for index in range(2):
        kube.kubectl("exec", pod(launch, index), "--", "touch", "/tmp/go")
    _, errors = wait_for_end(process)
    assert "restart" not in errors


SAVES = """
import os, signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("attempt", os.environ["TFLAUNCH_ATTEMPT"], flush=True)
time.sleep(9999 if os.environ["TFLAUNCH_ATTEMPT"] == "0" else 0)
"""


@pytest.mark.parametrize(
    ("emptied", "cause"),
    [(Kube.drained, "its pod has no node"), (Kube.shutting_down, "its node node-0 is shutting down")],
)
def test_a_node_that_is_emptied_lets_tasks_save_and_costs_no_restart(
    kube: Kube, launch: Launch, tmp_path: Path, emptied: Callable[[Kube], AbstractContextManager[None]], cause: str
) -> None:
    """By kubectl, or by its kubelet, to which logind has announced a shutdown."""
    process = launch.start("up", spec(tmp_path, SAVES))
    read_errors_until(process, "tflaunch: run ")
    for task in ("worker:0", "worker:1"):
        launch.wait_for_log(task, "attempt 0")
    with emptied(kube):
        read_errors_until(process, cause)
    _, errors = wait_for_end(process)
    log = launch.log("worker:0")
    assert log.index("saved") < log.index("attempt 1")
    assert "of 3" not in errors  # a restart that is charged is "1 of 3"


FILLS_DISK = """
import os, time
with open("/tmp/filled", "wb") as file:
    for _ in range(40):
        file.write(os.urandom(1 << 20))
time.sleep(9999)
"""
SMALL_DISK = """
apiVersion: v1
kind: LimitRange
metadata: {name: disk}
spec: {limits: [{type: Container, default: {ephemeral-storage: 20Mi}}]}
"""


def test_an_eviction_is_named_with_its_cause(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    """In the summary, and by commands afterwards."""
    kube.kubectl("create", "--filename=-", given=SMALL_DISK)
    try:
        ended = launch.up(spec(tmp_path, FILLS_DISK, workers=1, restart={"max": 0}))
    finally:
        kube.kubectl("delete", "limitrange", "disk")
    assert ended.returncode == 125, ended.stderr
    cause = "was lost: evicted: Pod ephemeral local storage usage exceeds the total limit of containers 20Mi"
    assert cause in ended.stderr
    assert cause in launch.status()["reason"]
    assert cause in launch.run("explain").stdout


def test_a_node_that_does_not_answer_is_lost_until_it_returns(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    timeouts = {"lease": "8s", "grace": "2s", "heartbeat": "3s"}
    process = launch.start("up", spec(tmp_path, COUNTS, workers=1, timeouts=timeouts))
    read_errors_until(process, "tflaunch: run ")
    launch.wait_for_log("worker:0", "attempt 0")
    with kube.without("kubelet"):
        read_errors_until(process, "was lost")
    wait_for_end(process)
    assert "attempt 1" in launch.log("worker:0")


def test_too_little_memory_is_named(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    container = {"image": IMAGE, "resources": {"memory": "100Mi"}}
    ended = launch.up(spec(tmp_path, FILLS, workers=1, container=container, restart={"max": 0}), code=137)
    assert "memory" in ended.stderr


def test_a_run_whose_supervisor_was_killed_is_ended_by_down(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    path = spec(tmp_path, WAITS)
    process = launch.start("up", path)
    launch_text = read_errors_until(process, "tflaunch: run ")
    process.kill()
    process.communicate()
    run = launch_text.partition("tflaunch: run ")[2].partition(":")[0]
    down = launch.run("down", run)
    assert down.returncode in (0, 143), down.stderr
    assert not kube.kubectl("get", "statefulsets,services", "--selector=tflaunch/run", "--output=name")


def test_check_asks_the_cluster_before_pods_exist(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    path = spec(tmp_path, WAITS)
    launch.succeed("check", "--on", "kubernetes", path)
    missing = launch.run("doctor", "--on", "kubernetes", "--namespace", "missing", path, code=3)
    assert "kubernetes.namespace: 'missing' does not exist" in missing.stdout
    launch.succeed("check", path)


def test_a_program_runs_without_a_spec(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, sys; print(os.environ['TFLAUNCH_TASK'], sys.argv[1]); sys.exit(4)")
    words = ["run", "--on", "kubernetes", "--image", IMAGE, "-n", "2", "python3", "train.py", "given"]
    ended = launch.run(*words, code=4)
    assert "given" in ended.stdout


PYTHON = {path: path for path in (sys.prefix, sys.base_prefix, str(REPOSITORY))}
CLUSTERS = {"multi_worker": {"worker": 3}, "parameter_server": {"chief": 1, "worker": 2, "ps": 1}}


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", CLUSTERS)
def test_tensorflow_trains_over_pods(kind: str, kube: Kube, launch: Launch, tmp_path: Path) -> None:
    """With the Python of these tests and a directory for their state, which the pods see as volumes."""
    (tmp_path / "state").mkdir()
    data = {
        "name": "mnist",
        "cluster": CLUSTERS[kind],
        "command": ["python", "-m", f"tflaunch_worker.examples.mnist_{kind}"],
        "workdir": "/state",
        "hosts": {"*": {"python": sys.executable}},
        "container": {"image": IMAGE, "volumes": {**PYTHON, "/state": str(tmp_path / "state")}},
        "kubernetes": {},
    }
    process = launch.start("up", written(tmp_path, data))
    wait_for_end(process)
    assert "test accuracy" in launch.log("chief:0" if "chief" in CLUSTERS[kind] else "worker:2")


def test_commands_run_in_pods(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    """On all hosts, each named before its lines."""
    running = launch.start("up", spec(tmp_path, WAITS, env={"GIVEN": "by the spec"}), until="here", count=2)
    on_all = launch.run("exec", "--all", "--", "sh", "-c", 'echo "$(hostname) $GIVEN"; ls program.py; exit 3')
    expected = [f"{pod(launch, number)} | {line}" for number in range(2)
                for line in ("program.py", f"{pod(launch, number)} by the spec")]  # fmt: skip
    assert (sorted(on_all.stdout.splitlines()), on_all.returncode) == (sorted(expected), 3), on_all.stderr
    running.send_signal(signal.SIGINT)
    wait_for_end(running, 130)


SET_UP = """
hostname set up, $(cat /tmp/seen), attempt $TFLAUNCH_ATTEMPT
[ $TFLAUNCH_ATTEMPT = 1 ] || exec sleep 9999
"""


def test_each_pod_is_set_up_once_before_its_task_starts(kube: Kube, launch: Launch, tmp_path: Path) -> None:
    """So is one that takes the place of a pod; what fails is named, and starts nothing."""
    make = ["echo made >>/tmp/seen", "mkdir -p .venv/bin", "ln -s /bin/echo .venv/bin/hostname"]
    path = spec(tmp_path, "", command=["sh", "-c", SET_UP], setup=make)
    process = launch.start("up", path)
    read_errors_until(process, "tflaunch: run ")
    for task in ("worker:0", "worker:1"):
        launch.wait_for_log(task, "set up, made, attempt 0")
    kube.kubectl("delete", "pod", pod(launch, 1), "--wait=false")
    wait_for_end(process)
    for task in ("worker:0", "worker:1"):
        assert "set up, made, attempt 1" in launch.log(task)
    failed = launch.up(path, "--set", 'setup="echo no wheel; exit 4"', code=3)
    sentence = (
        r"`setup` is not possible on cluster-\w+-worker-\d: `echo no wheel; exit 4` failed with exit code 4; correct"
    )
    assert re.search(sentence, failed.stderr), failed.stderr  # without a path in a pod that is deleted
    assert "\ntflaunch:   no wheel\n" in failed.stderr
    assert not failed.stdout, "a task has started"
