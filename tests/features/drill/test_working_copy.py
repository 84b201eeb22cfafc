"""The copies in which a drill trains, and the places that no copy has."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tflaunch.clusterspec.spec_file import SpecFile
from tflaunch.discovery import prepare
from tflaunch.errors import TflaunchError
from tflaunch.features.drill.working_copy import copy_directory, drill_directory, outside_paths


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path / "job/home"))
    return tmp_path / "job/home"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


def named(job: Path, command: str, **fields: Any) -> list[str]:
    text = json.dumps({"cluster": {"worker": 1}, "command": command, **fields})
    plan, _ = prepare.plan_spec(SpecFile("test", job, ".json", text))
    return [path for path, _ in outside_paths(plan, job)]


def test_a_copy_has_the_files_and_leads_where_the_original_leads(tmp_path: Path, job: Path, home: Path) -> None:
    outside = tmp_path / "data"
    outside.mkdir()
    for name in ("train.py", "lib/model.py", ".git/config", "home/runs/old", ".venv/bin/python"):
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        (job / name).write_text(name)
    os.mkfifo(job / "pipe")
    (job / "data").symlink_to("../data")
    (job / "model.py").symlink_to("lib/model.py")
    assert copy_directory(job, tmp_path / "copy", with_single=False) == []
    assert sorted(os.listdir(tmp_path / "copy")) == [".venv", "data", "lib", "model.py", "train.py"]
    assert (tmp_path / "copy/data").resolve() == outside
    assert (tmp_path / "copy/model.py").resolve() == tmp_path / "copy/lib/model.py"
    assert (tmp_path / "copy/.venv").resolve() == job / ".venv"


def test_a_directory_that_is_too_large_is_refused(tmp_path: Path, job: Path) -> None:
    with (job / "data").open("wb") as file:
        file.truncate(5 << 30)  # without using the disk
    with pytest.raises(TflaunchError, match=r"has 5\.0G, which a drill does not copy; move data"):
        copy_directory(job, tmp_path / "copy", with_single=True)


def test_places_outside_are_named_if_a_training_may_write_there(tmp_path: Path, job: Path) -> None:
    state, data = tmp_path / "state", tmp_path / "data"
    state.mkdir()
    data.mkdir()
    (data / "images.npz").write_text("")
    (job / "train.py").write_text('save("../logs"); at("/job:worker/task:0"); match("/")')
    assert named(job, f"python train.py --dir={state} --data {data}") == [str(state), "../logs"]
    assert named(job, "python -c pass", env={"OUT": "../out", "RUN": "../{run}"}) == ["../out"]
    assert named(job, "python -c pass --dir ckpt", workdir=str(data)) == [str(data)]
    assert named(job, f"python {job}/train.py --out {job}/out")[0] == f"{job}/out", "it is not that of the copy"
    (job / "ckpt").symlink_to(state)
    assert named(job, "python -c pass") == ["ckpt"]
    (job / "ckpt").unlink()
    (data / "ckpt-1.index").write_text("")
    assert named(job, f"python -c pass {data}") == [str(data)]


@pytest.mark.parametrize(
    ("files", "left_out", "of_several"),
    [
        ("ckpt/checkpoint ckpt/ckpt-1.index ckpt/ckpt-1.data-00000-of-00001", 3, 3),
        ("backup/latest.weights.h5 backup/training_metadata.json", 2, 0),
        ("ckpt/step-10.npz ckpt/latest.pkl ckpt/step-20.npz", 3, 2),
        ("mnist.npz train.h5 metadata.json labels/meta.json checkpoint.py runs/events.out.tfevents.1", 0, 0),
    ],
)
def test_a_copy_has_no_checkpoints_of_earlier_trainings(
    tmp_path: Path, job: Path, files: str, left_out: int, of_several: int
) -> None:
    for name in files.split():
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        (job / name).write_text("")
    for expected, with_single in ((left_out, False), (of_several, True)):
        copy = tmp_path / f"copy-{with_single}"
        out = copy_directory(job, copy, with_single=with_single)
        assert (len(out), {name for name in files.split() if not (copy / name).exists()}) == (expected, set(out))


def test_a_drill_removes_its_own_directory_unless_that_is_kept(home: Path) -> None:
    with drill_directory(is_kept=False) as directory:
        assert os.listdir(home / "drills") == [directory.name]
        with drill_directory(is_kept=False):
            assert directory.exists()
    assert not (home / "drills").exists()
    with drill_directory(is_kept=True):
        pass
    with drill_directory(is_kept=False):
        assert len(os.listdir(home / "drills")) == 2
