"""`tflaunch render --to slurm`: bash runs the script to the same end as `up`, and leaves nothing behind.

Beside them, `tests/slurm/test_sbatch.py` submits such scripts to a real Slurm.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from support.launch import PATIENCE, Launch
from support.rendering import MARK, hostile, node_of_slurm, tf_configs, written

pytestmark = pytest.mark.cli

STUBBORN = "trap '' TERM; (trap '' TERM; sleep 9999) & echo ready; wait; sleep 9999"


def start(launch: Launch, **fields: Any) -> subprocess.Popen[str]:
    """Start the script for a spec."""
    script = written(launch, launch.spec(**fields), "slurm")
    env = {**launch.env, **node_of_slurm(launch.directory, launch.env["PATH"])}
    process = subprocess.Popen(
        ["bash", str(script)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    launch.started.append(process)
    return process


def ends(launch: Launch, **fields: Any) -> tuple[int, str]:
    """Run the script for a spec to completion."""
    process = start(launch, **fields)
    output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output


def test_every_task_is_given_what_plan_says(launch: Launch) -> None:
    """TF_CONFIG byte for byte, even where a value or a name is hard to quote for a shell."""
    spec: dict[str, Any] = {
        "cluster": {"chief": ["localhost:2222"], "worker": ["localhost:2223", "localhost:2224"]},
        "command": ["sh", "-c", 'printf %s "$TF_CONFIG" >"$TFLAUNCH_TASK"; cat /proc/$$/environ >"$TFLAUNCH_TASK.env"'],
        "env": {"QUOTED": 'it\'s $HOME `x` "y"\\', "a-b": "c d", "IFS": "e", "cluster": "f"},
        "roles": {"chief": {"workdir": "there", "env": {"OWN": "1"}}},
    }
    (launch.directory / "there").mkdir()
    assert ends(launch, **spec) == (0, "")
    for task, config in tf_configs(launch, launch.spec(**spec)).items():
        place = launch.directory / "there" if task == "chief:0" else launch.directory
        assert (place / task).read_text() == config
        found = (place / f"{task}.env").read_text().split("\0")
        assert {f"{name}={value}" for name, value in spec["env"].items()} <= set(found)
        assert ("OWN=1" in found) == (task == "chief:0")


@pytest.mark.parametrize("is_from_spec", [True, False])
def test_a_limit_for_shells_is_not_one_for_the_script(launch: Launch, is_from_spec: bool) -> None:
    """TMOUT ends `read` in bash; the script still waits."""
    limit = {"TMOUT": "1"}
    launch.env.update({} if is_from_spec else limit)
    command = ["sh", "-c", "sleep 1.2; exit 3"]
    assert ends(launch, cluster={"worker": 2}, command=command, env=limit if is_from_spec else {})[0] == 3


def test_no_text_is_run(launch: Launch) -> None:
    """Whatever bash would evaluate in a variable or an argument if it were part of a script."""
    env = {name: value for name, value in hostile()["env"].items() if "${" not in value}  # which a spec fills in
    spec = {**hostile(), "env": env, "workdir": f"a\n$(touch {MARK})", "command": ["cp", "/proc/self/environ", "env"]}
    del spec["tensorboard"], spec["sidecars"], spec["roles"]
    place = launch.directory / spec["workdir"]
    place.mkdir()
    assert ends(launch, **{**spec, "cluster": {"worker": 1}})[0] == 0
    found = (place / "env").read_bytes().decode().split("\0")
    assert {f"{name}={value}" for name, value in env.items()} <= set(found)
    assert not list(launch.directory.rglob(MARK))


def test_the_first_failure_ends_all_with_its_code(launch: Launch) -> None:
    """Including those that ignore TERM, and what they have started."""
    script = (
        f'[ "$TFLAUNCH_TASK" = worker:1 ] && {{ until [ -e up ]; do sleep 0.01; done; exit 7; }}; touch up; {STUBBORN}'
    )
    code, output = ends(launch, cluster={"worker": 2}, command=["sh", "-c", script])
    assert code == 7
    assert "worker:1 failed with 7" in output


def test_a_task_that_cannot_start_fails_like_in_a_shell(launch: Launch) -> None:
    assert ends(launch, cluster={"worker": 2}, command=["/no/such/program"])[0] == 127


def test_servers_and_evaluator_end_with_the_chief(launch: Launch) -> None:
    """An evaluator that fails is only reported; processes that a task leaves behind end with it."""
    code, output = ends(
        launch,
        cluster={"chief": 1, "worker": 1, "ps": 1, "evaluator": 1},
        command=["sleep", "9999"],
        roles={
            "chief": {"command": ["sh", "-c", "until [ -e failed ]; do sleep 0.01; done; sleep 9999 & exit 0"]},
            "evaluator": {"command": ["sh", "-c", "touch failed; exit 3"]},
        },
    )
    assert code == 0
    assert "evaluator:0" not in output or "evaluator:0 ended with 3" in output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_all(launch: Launch, number: int, code: int) -> None:
    fields = {"cluster": {"worker": 2}, "command": ["sh", "-c", STUBBORN], "timeouts": {"grace": "1s"}}
    process = start(launch, **fields)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    os.kill(process.pid, number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == code
