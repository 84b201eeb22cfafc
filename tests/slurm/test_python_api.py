"""The Python API with runs that are jobs of a real Slurm."""

import subprocess
import sys
from typing import Any

import pytest

from support.launch import Launch
from support.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("nodes")

HEAD = """
import tflaunch
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
