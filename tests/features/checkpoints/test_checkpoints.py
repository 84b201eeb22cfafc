"""Checkpoints are found by their file names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tflaunch_worker.agent import checkpoint_progress

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ckpt-120.index", 120),
        ("model.ckpt-1234.index", 1234),
        ("cp-0005.ckpt.index", 5),
        ("mnist2_ckpt-7.index", 7),
        ("epoch_07.weights.h5", 7),
        ("weights.05-0.31.h5", 5),
        ("model.keras", 0),
        ("variables.index", 0),
        ("ckpt-120.data-00000-of-00001", 0),
        ("events.out.tfevents.1700000000", 0),
        ("train-00012.tfrecord", 0),
    ],
)
def test_the_number_in_a_name(name: str, number: int) -> None:
    assert checkpoint_progress.number_of(name) == number


def write(path: Path, at: float) -> None:
    """Create a file with this modification time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (at, at))


def test_the_newest_of_an_attempt_is_that_with_the_highest_number(tmp_path: Path) -> None:
    write(tmp_path / "state" / "ckpt-900.index", at=1000)
    write(tmp_path / "state" / "ckpt-12.index", at=2000)
    write(tmp_path / "state" / "ckpt-9.index", at=2001)
    assert checkpoint_progress.newest([str(tmp_path)], since=1500) == 12
    assert checkpoint_progress.newest([str(tmp_path)], since=500) == 900
    assert checkpoint_progress.newest([str(tmp_path / "missing")], since=0) == 0


@pytest.mark.thorough
def test_a_large_tree_costs_little(tmp_path: Path) -> None:
    for number in range(6000):
        (tmp_path / f"image-{number}.png").touch()
    (tmp_path / "z").mkdir()
    write(tmp_path / "z" / "ckpt-1.index", at=2000)
    assert checkpoint_progress.newest([str(tmp_path)], since=0) == 0


def test_directories_are_those_that_the_command_names(tmp_path: Path) -> None:
    """As an argument or behind `=`, relative or absolute; other arguments are left out."""
    for name in ("work/state", "work/out", "far", "own"):
        (tmp_path / name).mkdir(parents=True)
    argv = ["python", "train.py", "--model_dir=state", "--out", "out", str(tmp_path / "far"), "/", "missing", "--x="]
    found = checkpoint_progress.directories(argv, str(tmp_path / "work"), str(tmp_path / "own"))
    assert found == [str(tmp_path / name) for name in ("work", "own", "work/state", "work/out", "far")]
