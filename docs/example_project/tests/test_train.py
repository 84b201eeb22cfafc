"""What must hold on several workers, tried on this machine."""

import os
import sys
from pathlib import Path

import pytest

from train import shard, train

PROJECT = Path(__file__).parent.parent


def test_one_worker_reads_everything():
    assert shard(["a", "b", "c"], environ={}) == ["a", "b", "c"]


@pytest.mark.tflaunch(worker=2, timeout=60)
def test_workers_read_different_files():
    own = {"worker:0": ["a", "c"], "worker:1": ["b"]}
    assert shard(["a", "b", "c"]) == own[os.environ["TFLAUNCH_TASK"]]


@pytest.mark.tflaunch(worker=2, timeout=300)
def test_two_workers_learn():
    losses = train(epochs=3)
    assert losses[2] < losses[0]


def test_the_command(tflaunch_cluster):
    command = [sys.executable, "train.py", "--epochs", "1"]
    result = tflaunch_cluster(workers=2, command=command, workdir=str(PROJECT), timeout=300)
    assert result.exit_code == 0, result.summary
    assert "losses: [" in result.tasks["worker:1"].log
