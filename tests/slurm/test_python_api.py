"""The Python API with runs that are jobs of a real Slurm."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from support.launch import Launch
from support.waiting import PATIENCE

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("nodes")]

HEAD = """
import os, signal, sys, tflaunch
FIELDS = {"cluster": {"worker": 2}, "strategy": "none", "restart": {"max": 0}, "command": sys.executable, "on": "slurm"}
def spec(script, **fields):
    command = ["sh", "-c", script]
    return tflaunch.Spec(cluster={"worker": 2}, strategy="none", command=command, restart={"max": 0}, **fields)
"""


def program(launch: Launch, text: str) -> subprocess.CompletedProcess[str]:
    command = [*launch.prefix, sys.executable, "-c", HEAD + text]
    options: dict[str, Any] = {"cwd": launch.directory, "env": launch.env, "text": True, "capture_output": True}
    return subprocess.run(command, timeout=PATIENCE, check=False, **options)


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


@pytest.mark.thorough
def test_leaving_the_block_stops_a_job(launch: Launch) -> None:
    text = """
with tflaunch.start(spec("echo up; exec sleep 9999"), on="slurm") as run:
    print(next(run.logs("worker:0", follow=True)).text)
print(run.wait().state)
"""
    ended = program(launch, text)
    assert (ended.stdout, ended.stderr) == ("up\nstopped\n", "")


@pytest.mark.thorough
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
