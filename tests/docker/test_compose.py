"""`docker-compose up` as in the README: real clusters in containers, and failures of containers."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from support.compose import Compose
from support.container_engine import Engine
from support.documents import blocks, run_block
from support.launch import LONG, Launch, read_until, wait_for_end
from support.mnist import ENOUGH, ENOUGH_QUICKLY, QUICK, digests
from support.rendering import TRAINING, tf_configs, written
from support.specs import REPOSITORY

pytestmark = pytest.mark.thorough

WORKERS = {"discover": {"worker": "dns:worker"}, "workdir": "/state"}


def shell(compose: Compose, script: str, **fields: object) -> str:
    """Write a spec whose workers run a shell script."""
    return compose.spec("shell.json", **WORKERS, strategy="none", command=["sh", "-c", script], **fields)


@pytest.mark.tensorflow
@pytest.mark.parametrize(("profile", "launcher"), [("multi-worker", "launcher"), ("parameter-server", "ps-launcher")])
def test_both_profiles_train(compose: Compose, profile: str, launcher: str) -> None:
    """The launcher's exit code is the job's, 0, and no container keeps running.

    The first trains as the repository has it, to its accuracy; the second only in `make nightly`.
    """
    is_quick = profile != "multi-worker" and not LONG
    if is_quick:
        name = "cluster_specs/compose_parameter_server.json"
        spec = json.loads((REPOSITORY / name).read_text())
        (compose.job / name).parent.mkdir()
        (compose.job / name).write_text(json.dumps({**spec, "command": [*spec["command"], *QUICK]}))
    else:
        compose.env.pop("JOB")
    chosen = () if profile == "multi-worker" else ("--profile", profile)
    ended = compose.run(*chosen, "up", "--exit-code-from", launcher)
    assert ended.returncode == 0, ended.stdout
    assert not compose.running()
    found = [float(number) for number in re.findall(r"test accuracy ([\d.]+)", ended.stdout)]
    assert len(found) == (2 if profile == "multi-worker" else 1)
    assert min(found) >= (ENOUGH_QUICKLY if is_quick else ENOUGH)
    assert len(set(re.findall(r"weights sha256 (\w+)", ended.stdout))) == 1


def test_the_code_of_a_program_that_fails_is_that_of_docker_compose(compose: Compose) -> None:
    """And as many tasks run as there are workers."""
    compose.env["SPEC"] = shell(compose, 'echo "$TF_CONFIG"; exit 7', restart={"max": 0})
    ended = compose.run("up", "--exit-code-from", "launcher", "--scale", "worker=3")
    assert ended.returncode == 7, ended.stdout
    assert not compose.running()
    (hosts,) = set(re.findall(r'"worker":\[(.*?)\]', ended.stdout))
    assert len({host.partition(":")[0] for host in hosts.split(",")}) == 3


def test_no_worker_can_read_the_key_that_opens_the_others(compose: Compose) -> None:
    """And all see the user's data."""
    data = compose.job / "data"
    data.mkdir()
    (data / "pictures").write_text("some")
    compose.env["DATA"] = str(data)
    script = "cat /data/pictures; find /keys ! -readable; grep -rl PRIVATE /keys"
    ended = compose.run("up", "--detach", "worker")
    ended = compose.run("run", "--rm", "-T", "launcher", "tflaunch", "up", shell(compose, script))
    assert ended.returncode == 0, ended.stdout
    assert re.findall(r"worker:\d \| (.*)", ended.stdout.replace("\r", "")) == ["some/keys/host/id"] * 2
    said = compose.run("run", "--rm", "--no-deps", "-T", "launcher", "tflaunch", "logs").stdout
    assert said.count("/keys/host/id") == 2, "logs outlive their run"


def test_a_job_that_the_launcher_may_not_read_is_said(compose: Compose) -> None:
    """Its user is not the one who mounted the directory."""
    spec = shell(compose, "true")
    compose.job.chmod(0o700)
    ended = compose.run("run", "--rm", "-T", "launcher", "tflaunch", "up", spec)
    assert ended.returncode == 2, ended.stdout
    assert "shell.json: cannot be read: Permission denied; user 1000 needs permission to read it" in ended.stdout


def test_a_container_that_is_lost_is_found_again(compose: Compose) -> None:
    """Paused longer than the lease; then its sshd dies and Docker restarts it: two restarts, exit 0."""
    spec = shell(
        compose,
        "[ $TFLAUNCH_ATTEMPT = 2 ] && exit; trap '' TERM; echo up $TFLAUNCH_ATTEMPT.; sleep 9999 & wait",
        timeouts={"heartbeat": 5, "lease": 30, "grace": 0.5, "connect": "10m"},
        restart={"max": 2, "backoff": [0, 0]},
    )
    compose.run("up", "--detach", "worker")
    running = compose.launch("up", spec)
    out = read_until(running, "up 0.", 2)
    first, second = compose.containers("worker")
    lost = f"host {compose.engine.address(second)} was lost"
    compose.engine.docker("pause", second)
    out += read_until(running, lost)
    compose.engine.docker("unpause", second)
    out += read_until(running, "up 1.", 2)
    # Process 1 is an init, which ends with its only child; so does the shell that kills.
    kill = "kill -9 $(cat /proc/1/task/1/children)"
    compose.engine.docker("exec", first, "sh", "-c", kill, may_fail=True)
    rest, _ = wait_for_end(running)
    assert "restart 2 starts" in rest


# ---- `tflaunch render --to compose`


@pytest.mark.tensorflow
def test_a_rendered_cluster_trains(engine: Engine, launch: Launch, tmp_path: Path) -> None:
    """With the plan's TF_CONFIG byte for byte, without any file of tflaunch's."""
    job = tmp_path / "job"
    job.mkdir()
    state = job / "state"
    state.mkdir()
    state.chmod(0o777)  # the image has a different user
    spec = launch.spec(
        "job/cluster.json",
        cluster={"worker": ["alpha:2222", "beta:2222"]},
        command=TRAINING,
        env={"TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    file = written(launch, spec, "compose")
    content = yaml.safe_load(file.read_text())
    tasks = {name: service for name, service in content["services"].items() if name != "job"}
    configs = {name: service["environment"]["TF_CONFIG"] for name, service in tasks.items()}
    assert configs == {task.replace(":", "-"): config for task, config in tf_configs(launch, spec).items()}

    project = Compose(engine, f"tfl{os.getpid()}", job, file)
    try:
        ended = project.run("up", "--exit-code-from", "job")
    finally:
        project.end()
        shutil.rmtree(state)
    assert ended.returncode == 0, ended.stdout
    assert not project.running()
    assert len(set(digests(ended.stdout))) == 1


# ---- docs/tutorial.md, from its first line to its last

DIRECTORY = "/home/tflaunch/tutorial"


@pytest.mark.tensorflow
def test_the_tutorial_works_as_it_is_written(compose: Compose) -> None:
    """In a launcher's container, with two others as the machines; that they are h1 and h2 is arranged before."""
    compose.run("up", "--detach", "worker")
    for name, machine in zip(("h1", "h2"), compose.containers("worker"), strict=True):
        compose.engine.docker("network", "disconnect", compose.network, machine)
        compose.engine.docker("network", "connect", "--alias", name, compose.network, machine)
    started = compose.run("run", "--detach", "launcher", "sleep", "infinity")
    assert started.returncode == 0, started.stdout
    (launcher,) = compose.containers("launcher")

    def shell(command: str) -> tuple[int, str]:
        words = ["exec", "--workdir", DIRECTORY, launcher, "bash", "-c", f"{{ {command}\n}} 2>&1; echo; echo $?"]
        output, _, code = compose.engine.docker(*words).rpartition("\n")
        return int(code), output

    def write(name: str, text: str) -> None:
        assert shell(f"printf %s {shlex.quote(text)} > {name}") == (0, "")

    compose.engine.docker("exec", launcher, "mkdir", DIRECTORY)
    for block in blocks(REPOSITORY / "docs" / "tutorial.md"):
        run_block(block, write, shell)
