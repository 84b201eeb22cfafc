"""`tflaunch render --to sh`: bash trains with it; sbatch and docker-compose have their own tests."""

from __future__ import annotations

import subprocess

import pytest

from support.fixed_ports import free_ports
from support.launch import PATIENCE, Launch
from support.mnist import digests
from support.rendering import TRAINING, written

pytestmark = pytest.mark.tensorflow


def test_the_script_trains(launch: Launch) -> None:
    """All tasks end with the same weights."""
    addresses = [f"localhost:{port}" for port in free_ports(2)]
    spec = launch.spec(cluster={"worker": addresses}, command=TRAINING, env={"TF_CPP_MIN_LOG_LEVEL": "2"})
    ended = subprocess.run(
        ["bash", written(launch, spec, "sh")],
        env=launch.env, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(digests(ended.stdout)) == 2
    assert len(set(digests(ended.stdout))) == 1
