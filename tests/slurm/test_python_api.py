"""The Python API with runs that are jobs of a real Slurm."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.launch import PATIENCE, Launch
from support.slurm_cluster import SlurmBed

pytestmark = pytest.mark.slurm

HEAD = """
import sys, tflaunch
def spec(script, **fields):
    command = ["sh", "-c", script]
    return tflaunch.Spec(cluster={"worker": 2}, strategy="none", command=command, restart={"max": 0}, **fields)
"""


def program(launch: Launch, text: str) -> subprocess.CompletedProcess[str]:
    """Run a program on the login node."""
    command = [*launch.prefix, sys.executable, "-c", HEAD + text]
    options = {"cwd": launch.directory, "env": launch.env, "text": True, "capture_output": True}
    return subprocess.run(command, timeout=PATIENCE, check=False, **options)  # type: ignore[call-overload, no-any-return]


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
    nodes.wait_until(lambda: not nodes.asked("squeue", "--noheader"), "the job is still queued")


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
    assert not nodes.asked("squeue", "--noheader")
