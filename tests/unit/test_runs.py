"""Which run is meant, and which runs are live."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tflaunch.errors import EXIT_USAGE, TflaunchError
from tflaunch.records import runs

pytestmark = pytest.mark.unit

OLD = "train-20260101-120000-aaaa"
NEW = "train-20260102-120000-bbbb"
OTHER = "eval-20251231-120000-cccc"

HOLD = """
import sys
from pathlib import Path
from tflaunch.records import runs
runs.take(Path(sys.argv[1]))
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs that have ended, and something else."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    directory = tmp_path / "runs"
    for name in (NEW, OLD, OTHER, ".hidden"):
        (directory / name).mkdir(parents=True)
    (directory / "train-file").write_text("no run")
    return directory


def test_a_run_is_found_by_name_or_beginning(place: Path) -> None:
    """As long as one run alone begins so."""
    assert runs.find(OLD) == place / OLD
    assert runs.find("eval") == place / OTHER
    assert runs.find("train-20260102") == place / NEW


def test_a_name_that_is_the_beginning_of_another_means_itself(place: Path) -> None:
    """Else it could never be named."""
    (place / "train").mkdir()
    assert runs.find("train") == place / "train"


@pytest.mark.parametrize("name", ["missing", "", ".hidden", "..", "/", f"{OLD}/"])
def test_what_does_not_exist_is_one_sentence_with_what_does(place: Path, name: str) -> None:
    """Newest first; nothing outside is ever reached."""
    with pytest.raises(TflaunchError, match=f"there is no run .*; the runs are {NEW}, {OLD}, {OTHER}$") as caught:
        runs.find(name)
    assert caught.value.exit_code == EXIT_USAGE


def test_a_beginning_of_several_is_refused(place: Path) -> None:
    """With their names."""
    with pytest.raises(TflaunchError, match=f"'train' is the beginning of several runs: {NEW}, {OLD}$"):
        runs.find("train")


def test_without_a_name_the_newest_is_meant(place: Path) -> None:
    """By its start; writing to an old one changes nothing."""
    (place / OLD / "lock").touch()
    assert runs.find(None) == place / NEW


def test_without_a_name_the_only_live_run_goes_before_the_newest(place: Path) -> None:
    """Of several live ones, none is guessed."""
    first = runs.take(place / OLD)
    assert runs.find(None) == place / OLD
    second = runs.take(place / NEW)
    with pytest.raises(TflaunchError, match=f"several runs are live, name one of them: {NEW}, {OLD}$"):
        runs.find(None)
    os.close(first)
    os.close(second)


def test_without_any_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says where they would be."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path / "none"))
    for name in (None, "train"):
        with pytest.raises(TflaunchError, match=f"there are no runs in {tmp_path}/none/runs"):
            runs.find(name)


def test_the_lock_goes_with_the_process_that_has_it(place: Path) -> None:
    """Even if it is killed; looking neither takes the lock nor makes one."""
    run = place / NEW
    assert not runs.is_live(run)
    assert not (run / "lock").exists()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "taken\n"
    assert runs.is_live(run)
    assert runs.is_live(run)
    with pytest.raises(TflaunchError, match=f"run {NEW} has a supervisor already"):
        runs.take(run)
    holder.kill()
    holder.communicate()
    assert not runs.is_live(run)
    os.close(runs.take(run))
    assert (run / "lock").stat().st_mode & 0o077 == 0


def test_a_child_does_not_keep_the_lock(place: Path) -> None:
    """The tasks' agents are started by the process that has it."""
    descriptor = runs.take(place / NEW)
    with subprocess.Popen(["sleep", "30"], close_fds=False) as child:
        os.close(descriptor)
        assert not runs.is_live(place / NEW)
        child.kill()


def test_a_directory_that_cannot_hold_a_lock(place: Path) -> None:
    """A link in place of the lock is followed by nobody."""
    (place / NEW / "lock").symlink_to(place / OLD / "lock")
    assert not runs.is_live(place / NEW)
    with pytest.raises(TflaunchError, match="lock: "):
        runs.take(place / NEW)
    assert not (place / OLD / "lock").exists()
