"""No program is ended that is silent for long and goes on, in whatever way."""

import os

import pytest

from support.launch import LONG, Launch, wait_for_end
from training.healthy import HEALTHY

pytestmark = [pytest.mark.tensorflow, pytest.mark.thorough]
RUNS = int(os.environ.get("TFLAUNCH_TEST_RUNS", "20" if LONG else "1"))
"""Runs of each, side by side: they wait most of the time."""


@pytest.mark.parametrize("name", HEALTHY if LONG else ("evaluator that works",))
def test_a_healthy_job_is_not_ended(launch: Launch, name: str) -> None:
    healthy = HEALTHY[name]
    launch.env["TFLAUNCH_STALL_SCALE"] = str(healthy.scale)
    (launch.directory / "train.py").write_text(healthy.program)
    cluster = {"worker": 2, **({"evaluator": 1} if healthy.evaluator else {})}
    spec = launch.spec(cluster=cluster, command=["python", "train.py"], restart={"max": 0}, preload=[])
    for started in [launch.start("up", "--name", f"job-{number}", spec) for number in range(RUNS)]:
        wait_for_end(started)
    assert not launch.records("job_hung")
