"""The Python API with runs that are jobs of a real Slurm."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from support.launch import PATIENCE, Launch
from support.slurm_cluster import SlurmBed

pytestmark = pytest.mark.slurm

HEAD = """
import os, signal, sys, tflaunch
FIELDS = {"cluster": {"worker": 2}, "strategy": "none", "restart": {"max": 0}, "command": sys.executable, "on": "slurm"}
def spec(script, **fields):
    command = ["sh", "-c", script]
    return tflaunch.Spec(cluster={"worker": 2}, strategy="none", command=command, restart={"max": 0}, **fields)
"""


def program(launch: Launch, text: str) -> subprocess.CompletedProcess[str]:
    """Run a program on the login node."""
    command = [*launch.prefix, sys.executable, "-c", HEAD + text]
    options: dict[str, Any] = {"cwd": launch.directory, "env": launch.env, "text": True, "capture_output": True}
    return subprocess.run(command, timeout=PATIENCE, check=False, **options)


@pytest.mark.usefixtures("nodes")
def test_a_job_runs_and_tells_its_result(launch: Launch) -> None:
    ended = program(
        launch,
        """
result = tflaunch.run(spec("echo from $TFLAUNCH_TASK; exit ${TFLAUNCH_TASK#*:}", slurm={"nodes": 2}), on="slurm")
print(result.exit_code, result.culprit, sorted(task.host for task in result.tasks.values()))
print(result.tasks["worker:1"].log, end="")
""",
    )
    assert (ended.stdout, ended.stderr) == ("1 worker:1 ['h1', 'h2']\nfrom worker:1\n", "")


def test_leaving_the_block_takes_a_job_out_of_the_queue(nodes: SlurmBed, launch: Launch) -> None:
    text = """
with tflaunch.start(spec("sleep 600", slurm={"begin": "now+1hour"}), on="slurm") as run:
    try:
        run.wait(2)
    except TimeoutError as error:
        print(str(error).partition(" ")[2])
"""
    ended = program(launch, text)
    assert (ended.stdout, ended.stderr) == ("has not ended within 2 s\n", "")
    nodes.wait_until(nodes.is_empty, "the job is still queued")


@pytest.mark.usefixtures("nodes")
def test_leaving_the_block_stops_a_job(launch: Launch) -> None:
    text = """
with tflaunch.start(spec("echo up; exec sleep 600"), on="slurm") as run:
    print(next(run.logs("worker:0", follow=True)).text)
print(run.wait().state)
"""
    ended = program(launch, text)
    assert (ended.stdout, ended.stderr) == ("up\nstopped\n", "")


def test_an_option_that_sbatch_does_not_know(nodes: SlurmBed, launch: Launch) -> None:
    ended = program(launch, 'tflaunch.start(spec("true", slurm={"partitoin": "x"}), on="slurm")')
    assert "TflaunchError: Slurm does not take the job" in ended.stderr
    assert nodes.is_empty()


@pytest.mark.usefixtures("nodes")
def test_a_function_returns_values(launch: Launch) -> None:
    """Its module is found beside the program, and the run can be attached to later."""
    (launch.directory / "mine.py").write_text("OFFSET = 40\n")
    ended = program(
        launch,
        """
import mine
def add(more):
    return os.environ["TFLAUNCH_TASK"], os.uname().nodename, mine.OFFSET + more
result = tflaunch.run(add, args=(2,), slurm={"nodes": 2}, **FIELDS)
print(sorted(result.values.values()), dict(tflaunch.attach().wait().values) == dict(result.values))
""",
    )
    assert (ended.stdout, ended.stderr) == ("[('worker:0', 'h1', 42), ('worker:1', 'h2', 42)] True\n", "")


@pytest.mark.usefixtures("nodes")
def test_a_function_raises_its_exception(launch: Launch) -> None:
    ended = program(
        launch,
        """
class OwnError(Exception): pass
def fail():
    if os.environ["TFLAUNCH_TASK"] == "worker:1":
        raise OwnError("no data in shard 1")
    signal.pause()
try:
    tflaunch.run(fail, trust_hosts=True, **FIELDS)
except OwnError as error:
    print(error, error.__cause__.result.culprit, "in fail" in str(error.__cause__))
""",
    )
    assert (ended.stdout, ended.stderr) == ("no data in shard 1 worker:1 True\n", "")


@pytest.mark.usefixtures("nodes")
def test_ctrl_c_ends_the_job_of_a_function(launch: Launch) -> None:
    """The fixture checks that no job and no process is left."""
    ended = program(
        launch,
        """
import pathlib, threading, time
def hang():
    pathlib.Path(os.environ["TFLAUNCH_TASK"]).touch()
    signal.pause()
def interrupt():
    while not all(map(os.path.exists, ["worker:0", "worker:1"])):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    tflaunch.run(hang, **FIELDS)
except KeyboardInterrupt:
    print("interrupted, then", tflaunch.attach().wait().state)
""",
    )
    assert (ended.stdout, ended.stderr) == ("interrupted, then stopped\n", "")


@pytest.mark.usefixtures("nodes")
def test_a_function_is_called_again_when_its_job_is_requeued(launch: Launch) -> None:
    ended = program(
        launch,
        """
import subprocess
def once_more():
    if "SLURM_RESTART_COUNT" not in os.environ and os.environ["TFLAUNCH_TASK"] == "worker:0":
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
        signal.pause()
    return os.environ.get("SLURM_RESTART_COUNT")
print(dict(tflaunch.run(once_more, **{**FIELDS, "restart": {"max": 1}}).values))
""",
    )
    assert (ended.stdout, ended.stderr) == ("{'worker:0': '1', 'worker:1': '1'}\n", "")
