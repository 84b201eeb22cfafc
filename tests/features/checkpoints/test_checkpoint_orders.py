"""An agent stores the files of a checkpoint in parts and returns them, and finds checkpoints by their names."""

import hashlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.played_agent import Answers, agent_parts
from tflaunch_worker.agent import checkpoint_progress
from tflaunch_worker.features.checkpoints.checkpoint_copies import CheckpointCopies
from tflaunch_worker.host_vars import UnknownValueError

DATA = b"weights" * 1000
DIGEST = hashlib.sha256(DATA).hexdigest()


class Copies:
    """The copies of one host, without a loop: only what needs no fork is asked for."""

    def __init__(self, directory: Path) -> None:
        self._answers = Answers()
        host = SimpleNamespace(directory=str(directory), expand_path=_expand)
        self._copies = CheckpointCopies(agent_parts(host=host))

    def ask(self, kind: str, body: bytes = b"", **about: Any) -> tuple[dict[str, Any], bytes]:
        return self._answers.ask(getattr(self._copies, kind), body, **about)

    def missing(self) -> Any:
        answer, _ = self.ask("store_checkpoint", kept=[DIGEST], digests=[DIGEST])
        assert answer["problem"] == ""
        return answer["missing"]

    def take(self, offset: int, body: bytes, *, is_last: bool) -> str:
        """Send a part of the file; return the problem with it."""
        return str(self.ask("write_checkpoint", body, sha256=DIGEST, offset=offset, is_last=is_last)[0]["problem"])


def _expand(path: str) -> str:
    if "$" in path:
        raise UnknownValueError(f"{path} is not known here")
    return path


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(tmp_path)


def test_each_part_is_acknowledged_with_what_has_arrived(copies: Copies) -> None:
    assert copies.missing() == [[DIGEST, 0]]
    assert copies.take(0, DATA[:3000], is_last=False) == ""
    assert copies.missing() == [[DIGEST, 3000]]
    assert copies.take(3000, DATA[3000:], is_last=True) == ""
    assert copies.missing() == []
    assert copies.ask("read_checkpoint", sha256=DIGEST, offset=5000) == ({}, DATA[5000:])


def test_another_content_is_a_problem_and_not_kept(copies: Copies) -> None:
    assert copies.take(0, DATA[1:], is_last=True)
    assert copies.missing() == [[DIGEST, 0]]
    copies.take(0, DATA[:3000], is_last=False)
    copies.ask("store_checkpoint", kept=[], digests=[])
    assert copies.missing() == [[DIGEST, 0]], "a part of what is no longer kept"
    copies.take(0, DATA[:3000], is_last=False)
    with pytest.raises(ValueError, match="does not follow"):
        copies.take(4000, DATA[4000:], is_last=True)


@pytest.mark.parametrize("kind", ["place_checkpoint", "find_checkpoint"])
def test_a_directory_that_is_not_known_here_is_a_problem(copies: Copies, kind: str) -> None:
    place = {"workdirs": ["/work"], "files": [], "age": 1.0}
    find: dict[str, Any] = {"workdir": "/work", "known": "", "wait": False}
    answer, _ = copies.ask(kind, directory="$SCRATCH", **(place if kind == "place_checkpoint" else find))
    assert answer["problem"] == "$SCRATCH is not known here"


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
    large = tmp_path / "large"
    write(large / "z" / "ckpt-1.index", at=2000)
    assert checkpoint_progress.newest([str(large)], since=0) == 1
    for number in range(6000):
        (large / f"image-{number}.png").touch()
    assert checkpoint_progress.newest([str(large)], since=0) == 0, "it costs little"


def test_directories_are_those_that_the_command_names(tmp_path: Path) -> None:
    """As an argument or behind `=`, relative or absolute; other arguments are left out."""
    for name in ("work/state", "work/out", "far", "own"):
        (tmp_path / name).mkdir(parents=True)
    argv = ["python", "train.py", "--model_dir=state", "--out", "out", str(tmp_path / "far"), "/", "missing", "--x="]
    found = checkpoint_progress.directories(argv, str(tmp_path / "work"), str(tmp_path / "own"))
    assert found == [str(tmp_path / name) for name in ("work", "own", "work/state", "work/out", "far")]
