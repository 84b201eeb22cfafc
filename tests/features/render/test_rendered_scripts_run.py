"""`tflaunch render --to slurm|compose`: the commands end as those of `up`, and leave nothing behind.

Beside them, `tests/slurm/test_sbatch.py` submits such scripts to a real Slurm.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.launch import PATIENCE, Launch, wait_for_end
from support.rendering import HOSTILE_TEXTS, MARK, hostile, node_of_slurm, rendered, tf_configs, written
from support.waiting import wait_until

pytestmark = pytest.mark.cli

STORE = """
import os
from pathlib import Path
task = os.environ["TFLAUNCH_TASK"]
Path(task).write_text(os.environ["TF_CONFIG"])
for name in ("environ", "cmdline"):
    Path(f"{task}.{name}").write_bytes(Path(f"/proc/self/{name}").read_bytes())
"""
STUBBORN = "trap '' TERM; (trap '' TERM; sleep 9999) & echo ready; wait; sleep 9999"


def start(launch: Launch, **fields: Any) -> subprocess.Popen[str]:
    script = written(launch, launch.spec(**fields), "slurm")
    env = {**launch.env, **node_of_slurm(launch.directory, launch.env["PATH"])}
    process = subprocess.Popen(["bash", script], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    launch.started.append(process)
    return process


def ends(launch: Launch, **fields: Any) -> tuple[int, str]:
    """Run the script for a spec to completion."""
    process = start(launch, **fields)
    output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output


def test_every_task_is_given_what_plan_says(launch: Launch) -> None:
    """TF_CONFIG byte for byte, and what bash would evaluate if it were part of a script; none of it is run."""
    env = {name: value for name, value in hostile()["env"].items() if "${" not in value}  # which a spec fills in
    words = [text for text in HOSTILE_TEXTS if "${" not in text]
    spec: dict[str, Any] = {
        "cluster": {"chief": ["localhost:2222"], "worker": ["localhost:2223", "localhost:2224"]},
        "command": [sys.executable, "-ISc", STORE, *words],
        "env": env,
        "roles": {"chief": {"workdir": f"a\n$(touch {MARK})", "env": {"OWN": "1"}}},
    }
    there = launch.directory / spec["roles"]["chief"]["workdir"]
    there.mkdir()
    assert ends(launch, **spec) == (0, "")
    for task, config in tf_configs(launch, launch.spec(**spec)).items():
        place = there if task == "chief:0" else launch.directory
        assert (place / task).read_text() == config
        found = (place / f"{task}.environ").read_bytes().decode().split("\0")
        assert {f"{name}={value}" for name, value in env.items()} <= set(found)
        assert ("OWN=1" in found) == (task == "chief:0")
        assert (place / f"{task}.cmdline").read_bytes().decode().split("\0")[3:-1] == words
    assert not list(launch.directory.rglob(MARK))
    assert ends(launch, cluster={"worker": 2}, command=["/no/such/program"])[0] == 127
    launch.env["TF_CONFIG"] = "that of the user's shell"
    sees_it = ["sh", "-c", "exit ${TF_CONFIG:+9}"]
    assert ends(launch, cluster={"worker": 1}, strategy="mirrored", command=sees_it)[0] == 0


@pytest.mark.parametrize("is_from_spec", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_limit_for_shells_is_not_one_for_the_script(launch: Launch, is_from_spec: bool) -> None:
    limit = {"TMOUT": "1"}
    launch.env.update({} if is_from_spec else limit)
    command = ["sh", "-c", "sleep 1.2; exit 3"]
    assert ends(launch, cluster={"worker": 2}, command=command, env=limit if is_from_spec else {})[0] == 3


def test_the_first_failure_ends_all_with_its_code(launch: Launch) -> None:
    script = (
        f'[ "$TFLAUNCH_TASK" = worker:1 ] && {{ until [ -e up ]; do sleep 0.01; done; exit 7; }}; touch up; {STUBBORN}'
    )
    code, output = ends(launch, cluster={"worker": 2}, command=["sh", "-c", script])
    assert code == 7
    assert "worker:1 failed with 7" in output


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


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.thorough),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.thorough),
    ],
)
def test_a_signal_ends_all(launch: Launch, number: int, code: int) -> None:
    fields = {"cluster": {"worker": 2}, "command": ["sh", "-c", STUBBORN], "timeouts": {"grace": "1s"}}
    process = start(launch, **fields)
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    os.kill(process.pid, number)
    wait_for_end(process, code)


def test_other_engines_make_no_pods_of_ours(launch: Launch) -> None:
    fields: dict[str, Any] = {"container": {"image": "x"}, "kubernetes": {"labels": {"team": "blue"}}}
    text = written(launch, launch.spec(cluster={"worker": ["a", "b"]}, command=["x"], **fields), "jobset").read_text()
    assert "team: blue" in text
    assert "completions: 2" in text


# ---- Compose

LASTING = ": > up-$TFLAUNCH_TASK; exec sleep 9999"
AFTERWARDS = "until [ -e ended ]; do sleep 0.02; done"


def composed(directory: Path, **fields: Any) -> dict[str, subprocess.Popen[str]]:
    """Start the commands of a compose file's services as processes, without containers."""
    text = rendered({"command": ["sh", "-c", f"cd {directory}; . ./$TFLAUNCH_TASK"], **fields}, "compose")
    services = yaml.safe_load(text)["services"]
    started = {}
    for name, service in services.items():
        command = [word.replace("$$", "$").replace("/tflaunch/job", str(directory)) for word in service["command"]]
        given = {key: value.replace("$$", "$") for key, value in service.get("environment", {}).items()}
        env = {"PATH": os.environ["PATH"], **given}
        started[name] = subprocess.Popen(command, env=env, text=True, stderr=subprocess.PIPE)
    return started


@pytest.mark.parametrize(
    ("programs", "code"),
    [
        ((AFTERWARDS, "touch ended; exit 0", LASTING, "exit 3"), 0),
        ((LASTING, "exit 7", LASTING, LASTING), 7),
        ((LASTING, "kill -KILL $$", LASTING, "exit 0"), 137),
        (("exit 0", LASTING, "exit 5", "exit 0"), 5),
    ],
)
def test_a_composed_job_ends_as_its_tasks_do(tmp_path: Path, programs: tuple[str, ...], code: int) -> None:
    """When all deciding tasks have ended or one has failed; no task's container ends earlier."""
    by_task = dict(zip(("worker:0", "worker:1", "feed", "evaluator:0"), programs, strict=True))
    for task, program in by_task.items():
        (tmp_path / task).write_text(program)
    feed = {"feed": {"command": ["sh", "-c", f"cd {tmp_path}; . ./$TFLAUNCH_TASK"], "required": True}}
    started = composed(tmp_path, cluster={"worker": 2, "evaluator": 1}, sidecars=feed)
    try:
        job = started.pop("job")
        job.wait(PATIENCE)
        assert [name for name, task in started.items() if task.poll() is not None] == []
        # A TERM between the fork and the exec of a task would be lost; Docker kills after the grace.
        lasting = [tmp_path / f"up-{task}" for task, program in by_task.items() if program == LASTING]
        wait_until(lambda: all(path.exists() for path in lasting))
    finally:
        for process in (job, *started.values()):
            process.terminate()
        said = [process.communicate(timeout=PATIENCE)[1] for process in (job, *started.values())]
    assert job.returncode == code, said


def test_a_composed_task_has_its_variables(tmp_path: Path) -> None:
    names = ("OPTIND", "task", "code", "is_stopped", "left", "TMOUT", "-dash", "a-b")
    env = dict.fromkeys(names, HOSTILE_TEXTS[1])
    program = ["cp", "/proc/self/environ", str(tmp_path / "env")]
    started = composed(tmp_path, cluster={"worker": ["a:2222"]}, env=env, command=program)
    started["job"].communicate(timeout=PATIENCE)
    started["worker-0"].terminate()
    started["worker-0"].communicate(timeout=PATIENCE)
    assert {f"{name}={value}" for name, value in env.items()} <= set((tmp_path / "env").read_text().split("\0"))
    assert started["job"].returncode == 0


def test_a_composed_task_is_told_to_stop(tmp_path: Path) -> None:
    """It saves, its container exits with its code, and the job sees the code."""
    (tmp_path / "worker:0").write_text(
        "trap 'until [ -e told ]; do sleep 0.02; done; echo > saved; exit 42' TERM; echo > ready; sleep 600 2>&- & wait"
    )
    started = composed(tmp_path, cluster={"worker": ["a:2222"]})
    wait_until((tmp_path / "ready").exists, started["worker-0"])
    started["worker-0"].terminate()
    (tmp_path / "told").touch()
    started["worker-0"].communicate(timeout=PATIENCE)
    assert (tmp_path / "saved").exists()
    started["job"].communicate(timeout=PATIENCE)
    assert [process.returncode for process in started.values()] == [42, 42]
