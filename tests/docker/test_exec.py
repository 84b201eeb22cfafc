"""Containers that are hosts without an sshd: `hosts.X.docker`."""

import json
import re
from typing import Any

import pytest

from support.container_engine import Engine
from support.documents import blocks
from support.launch import Launch, read_until, wait_for_end
from support.releases import install
from support.specs import REPOSITORY
from support.terminals import Terminal
from support.waiting import wait_until

pytestmark = pytest.mark.thorough

REDUCE = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
value = strategy.run(lambda: tf.constant(1.0))
print("sum", strategy.reduce("SUM", value, axis=None).numpy(), flush=True)
"""


def fields(containers: list[str], *command: str) -> dict[str, Any]:
    """Return a spec with one worker per container."""
    hosts = {name: {"docker": name} for name in containers}
    return {"cluster": {"worker": containers}, "hosts": hosts, "command": [*command], "workdir": "/state"}


@pytest.mark.tensorflow
def test_two_containers_reduce_together(launch: Launch, containers: list[str]) -> None:
    """As docs/containers.md has it: they find each other by name, and use the TensorFlow of the image."""
    (text,) = (block.text for block in blocks(REPOSITORY / "docs" / "containers.md") if '"docker"' in block.text)
    spec = json.loads(text)
    assert [host["docker"] for host in spec["hosts"].values()] == ["c1", "c2"]
    spec["hosts"] = dict(zip(spec["hosts"], ({"docker": name} for name in containers), strict=True))
    (launch.directory / "train.py").write_text(REDUCE)
    ended = launch.succeed("up", launch.spec(**spec))
    assert "warning" not in ended.stderr
    assert ended.stdout.count("sum 2.0") == 2


def test_a_container_that_is_killed_and_started_goes_on(engine: Engine, launch: Launch, containers: list[str]) -> None:
    """It is reached again, and another attempt of all tasks runs to completion."""
    script = "[ $TFLAUNCH_ATTEMPT = 1 ] && exit; trap '' TERM; echo up; sleep 9999 & wait"
    spec = launch.spec(
        **fields(containers, "sh", "-c", script),
        strategy="none",
        timeouts={"grace": 0.5, "connect": "10m"},
        restart={"max": 1, "backoff": [0, 0]},
    )
    running = launch.start("up", spec)
    read_until(running, "up", 2)
    engine.docker("kill", containers[1])
    engine.docker("start", containers[1])
    _, err = wait_for_end(running)
    assert "restart 1 starts" in err
    assert f"host {containers[1]} was lost" in err


def test_containers_are_set_up_once_before_their_first_task(
    engine: Engine, launch: Launch, containers: list[str]
) -> None:
    """It goes before the container's PATH, two tasks of one share it, and the next run finds it."""
    make = ["echo made >>/tmp/seen", "mkdir -p .venv/bin", "ln -s /bin/echo .venv/bin/hostname"]
    about = fields(containers, "sh", "-c", "hostname set up $TFLAUNCH_TASK")
    about["cluster"] = {"worker": [containers[0], *containers]}
    for _ in range(2):
        ended = launch.succeed("up", launch.spec(**about, strategy="none", setup=make))
        for number in range(3):
            assert f"set up worker:{number}" in ended.stdout
    for name in containers:
        assert engine.docker("exec", name, "cat", "/tmp/seen") == "made"
    about["hosts"][containers[1]]["setup"] = "echo no wheel; exit 4"
    ended = launch.up(launch.spec(**about, strategy="none", setup=make), code=3)
    sentence = f"`setup` is not possible on {containers[1]}: `echo no wheel; exit 4` failed with exit code 4; its"
    assert sentence in ended.stderr
    assert "\ntflaunch:   no wheel\n" in ended.stderr
    assert not ended.stdout, "a task has started"


def test_a_container_that_is_not_there_is_one_sentence(launch: Launch, containers: list[str]) -> None:
    """With its name, before anything starts."""
    ended = launch.up(launch.spec(**fields([*containers, "nobody"], "true"), strategy="none"), code=3)
    (sentence,) = ended.stderr.splitlines()
    assert "nobody" in sentence
    assert "No such container" in sentence


def test_the_engine_of_the_page(engine: Engine, launch: Launch, containers: list[str]) -> None:
    """The code in docs/discovery.md runs a task in every container with the label."""
    install(launch, {block.file: block.text for block in blocks(REPOSITORY / "docs" / "discovery.md") if block.file})
    about: Any = {"hosts": {"discover": "labelled:tflaunch.test"}, "workdir": "/state", "timeouts": {"connect": "10m"}}
    spec = launch.shell("echo in $(hostname)", strategy="none", **about)
    ended = launch.succeed("up", spec)
    assert len(set(re.findall(r"in (\w+)", ended.stdout))) == 2
    ended = launch.up(spec, "--set", "hosts.discover=labelled:nobody", code=2)
    assert "hosts.discover: no running container has the label 'nobody'; start one" in ended.stderr


def test_commands_run_in_containers(engine: Engine, launch: Launch, containers: list[str]) -> None:
    """With the directory of the task, from a terminal and through pipes; they end with who has started them."""
    launch.succeed("up", "-d", launch.spec(**fields(containers, "sleep", "9999"), strategy="none"))
    on_all = launch.run("exec", "--all", "--", "sh", "-c", 'echo "$(hostname) $PWD $TFLAUNCH_TASK"; exit 3')
    ids = [engine.docker("inspect", "--format", "{{.Config.Hostname}}", name).strip() for name in containers]
    expected = [f"{name} | {ids[number]} /state worker:{number}" for number, name in enumerate(containers)]
    assert (sorted(on_all.stdout.splitlines()), on_all.returncode) == (expected, 3)
    script = "trap exit\\ 4 INT; tty; while :; do sleep 0.1; done"
    terminal = Terminal(launch, f"tflaunch exec worker:1 -- sh -c '{script}'", b"/dev/pts/")
    terminal.type(b"\x03")
    assert terminal.read_to_end()[1] == 4
    left = launch.start("exec", "worker:1", "--", "sh", "-c", "echo up; sleep 654")
    read_until(left, "up")
    left.kill()
    look = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 654'"
    wait_until(lambda: engine.docker("exec", containers[1], "sh", "-c", look, may_fail=True) == "0")
    assert launch.run("down").returncode == 0
