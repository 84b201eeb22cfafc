"""Third-party programs run unchanged under `tflaunch up`: a small one per habit, in programs/others.

Each docstring there names its habit. The assertions here are what the programs' authors rely on, and what
tflaunch prints where a habit cannot work.
"""

import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.fixed_ports import free_ports
from support.launch import Launch, wait_for_end

pytestmark = pytest.mark.tensorflow

OTHERS = Path(__file__).parent / "programs" / "others"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}
NEVER = {"max": 0}
SERVERS = {"worker": {"server": True}, "ps": {"server": True}}


def command(program: str, *arguments: object) -> list[str]:
    return ["python", str(OTHERS / program), *map(str, arguments)]


def spec(launch: Launch, program: str, *arguments: object, **fields: Any) -> Path:
    """Write a spec, by default of two workers, that run one of the programs without restarts."""
    chosen = {"cluster": {"worker": 2}, "command": command(program, *arguments), "env": QUIET, "restart": NEVER}
    return launch.spec(**{**chosen, **fields})


def up(launch: Launch, program: str, *arguments: object, **fields: Any) -> subprocess.CompletedProcess[str]:
    return launch.up(spec(launch, program, *arguments, **fields))


def succeeds(launch: Launch, program: str, *arguments: object, **fields: Any) -> dict[str, str]:
    """Run a program that must succeed; return each task's output, without tflaunch's separators."""
    ended = up(launch, program, *arguments, **fields)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    return said(launch)


def said(launch: Launch) -> dict[str, str]:
    """Return each task's output in the only run."""
    return {path.stem: path.read_text() for path in (launch.run_directory() / "logs").glob("*.log")}


def lines_of(text: str, beginning: str) -> list[str]:
    """Return the rest of the lines that start with this text."""
    return re.findall(rf"^{re.escape(beginning)} (.*)$", text, re.MULTILINE)


# ---- MultiWorkerMirroredStrategy


@pytest.mark.usefixtures("shared_import")
@pytest.mark.parametrize(
    ("cluster", "batch", "chief", "other"),
    [
        ({"worker": 2}, 128, "worker-0", "worker-1"),
        pytest.param({"chief": 1, "worker": 1}, 64, "worker-0", "chief-0", marks=pytest.mark.thorough),
    ],
    ids=["workers", "chief and worker"],
)
def test_the_tutorial_counts_its_workers_and_worker_0_saves(
    launch: Launch, cluster: dict[str, int], batch: int, chief: str, other: str
) -> None:
    """Only one model remains, at the real path; beside a chief it counts one worker too few."""
    logs = succeeds(launch, "mwms_tutorial.py", "--model_dir", launch.directory / "model", cluster=cluster)
    for log in logs.values():
        assert lines_of(log, "global batch") == [f"{batch} on 2 replicas"]
    assert lines_of(logs[chief], "saved") == ["model.keras"]
    assert lines_of(logs[other], "saved") == [f"workertemp_{other[-1]}/model.keras"]
    assert [path.name for path in (launch.directory / "model").iterdir()] == ["model.keras"]


# ---- ParameterServerStrategy


@pytest.mark.usefixtures("shared_import")
def test_fit_for_the_chief_alone(launch: Launch) -> None:
    """tf_keras, DatasetCreator, sharded variables; tflaunch runs and ends the servers of worker and ps."""
    cluster = {"chief": 1, "worker": 2, "ps": 2}
    logs = succeeds(launch, "pss_fit_for_the_chief_only.py", cluster=cluster, roles=SERVERS)
    assert "2 epochs, 10 steps" in logs["chief-0"].splitlines()
    ends = {record["task"]: (record["was_told"], record["signal"]) for record in launch.records("task_exited")}
    assert ends.pop("chief:0") == (False, None)
    assert ends == dict.fromkeys(("worker:0", "worker:1", "ps:0", "ps:1"), (True, signal.SIGTERM))


@pytest.mark.usefixtures("shared_import")
def test_one_program_for_all_roles_and_an_evaluator_that_never_ends(launch: Launch) -> None:
    """The evaluator sees checkpoints; after the chief it has `finish`, then it ends with the servers."""
    checkpoints = launch.directory / "checkpoints"
    cluster = {"chief": 1, "worker": 1, "ps": 1, "evaluator": 1}
    fields = {"env": {**QUIET, "GRPC_FAIL_FAST": "use_caller"}, "timeouts": {"finish": "100ms"}}
    written = spec(launch, "pss_one_program_for_all_roles.py", checkpoints, cluster=cluster, **fields)
    running = launch.start("up", written, until="evaluated ['loss', 'mae']")
    (checkpoints / "stop").touch()
    wait_for_end(running)
    logs = said(launch)
    assert "trained 0 over full epochs" in logs["chief-0"]
    assert [logs[f"{role}-0"].count("serving\n") for role in ("worker", "ps")] == [1, 1]
    ends = {record["task"]: (record["was_told"], record["signal"]) for record in launch.records("task_exited")}
    assert ends.pop("chief:0") == (False, None)
    assert ends == dict.fromkeys(("worker:0", "ps:0", "evaluator:0"), (True, signal.SIGTERM))


# ---- Programs that ignore tflaunch's TF_CONFIG


@pytest.mark.usefixtures("shared_import")
def test_training_alone_is_not_quiet(launch: Launch) -> None:
    """A cluster of one, hard-coded in the program: exit 0, but tflaunch reports what it has seen.

    Each has its own address: with the same one, it is random which of two simultaneous starts gets connections.
    """
    places = zip(("chief", "worker"), free_ports(2), strict=True)
    roles = {role: {"command": command("overwrites_tf_config.py", port)} for role, port in places}
    ended = up(launch, "overwrites_tf_config.py", cluster={"chief": 1, "worker": 1}, roles=roles)
    assert ended.returncode == 0, ended.stderr
    assert [lines_of(log, "replicas") for log in said(launch).values()] == [["1"], ["1"]]
    assert "never opened" in ended.stderr
    assert "TF_CONFIG" in ended.stderr


# ---- Ways to end

STAYS = """
import os, threading, time
def poll_the_gpu():
    while True:
        time.sleep(0.1)
print("training done", flush=True)
if os.environ["TFLAUNCH_TASK"] == "worker:1":
    threading.Thread(target=poll_the_gpu).start()
"""


def test_a_task_that_stays_after_training_is_named_with_its_stacks(launch: Launch) -> None:
    """`success: all`, the default: `finish` stops it some time after the first has ended, 124."""
    wait = f"until grep -qs 'training done' {launch.home}/runs/*/logs/worker-1.log; do sleep 0.1; done"
    words = ["sh", "-c", f"[ $TFLAUNCH_TASK = worker:0 ] && {wait}; exec {shlex.join(['python', '-c', STAYS])}"]
    ended = up(launch, "", command=words, timeouts={"grace": "5m", "finish": "5s"})
    assert ended.returncode == 124, ended.stderr
    assert "stopped: worker:1 still ran 5 s after the first task had finished" in ended.stderr
    assert "poll_the_gpu" in said(launch)["worker-1"].partition("Fatal Python error: Aborted")[2]
