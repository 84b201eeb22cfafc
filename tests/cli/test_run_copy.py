"""The second copy of a run directory, at the other end of a command."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from tflaunch.store import run_copy
from tflaunch.store.run_copy import CopyError, RunCopy

pytestmark = pytest.mark.cli
PROGRAM = """
import sys
from pathlib import Path
from tflaunch.store.run_copy import take_changes
take_changes(Path(sys.argv[1]), int(sys.argv[2]), sys.stdin.buffer, sys.stdout.buffer)
"""
NUMBER = 1


class Bed:
    """A run directory, and the place of its copy."""

    def __init__(self, directory: Path) -> None:
        self.run = directory / "run-1"
        self.state = directory / "state"
        (self.run / "logs").mkdir(parents=True)
        self.state.mkdir()
        self.said: list[str] = []
        self.superseded = 0

    def copy(self, number: int = NUMBER) -> RunCopy:
        """Return what sends the changes of supervisor ``number``."""
        command = [sys.executable, "-c", PROGRAM, str(self.state), str(number)]
        return RunCopy(self.run, command, self.said.append, self.note)

    def note(self) -> None:
        """Count how often a supervisor was superseded."""
        self.superseded += 1

    def append(self, name: str, text: str) -> None:
        """Append to a file of the run."""
        with (self.run / name).open("a") as file:
            file.write(text)

    def copied(self) -> dict[str, str]:
        """Return the files of the copy."""
        run = self.state / "run"
        return {str(path.relative_to(run)): path.read_text() for path in run.rglob("*") if path.is_file()}

    def content(self) -> dict[str, str]:
        """Return the files of the run."""
        return {str(path.relative_to(self.run)): path.read_text() for path in self.run.rglob("*") if path.is_file()}


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    found = Bed(tmp_path)
    found.append("events.jsonl", '{"kind": "plan"}\n')
    found.append("logs/worker-0.log", "x" * 700_000)
    found.append("record.json", "{}")
    return found


def test_changes_are_copied(bed: Bed) -> None:
    copy = bed.copy()
    assert copy.push()
    assert bed.copied() == bed.content()
    bed.append("events.jsonl", '{"kind": "host_joined"}\n')
    copy.push_journal()
    assert bed.copied()["events.jsonl"] == bed.content()["events.jsonl"]
    bed.append("logs/worker-0.log", "more\n")
    (bed.run / "record.json").write_text('{"shorter": 1}')
    assert copy.push()
    copy.close()
    assert bed.copied() == bed.content()


def test_checkpoints_that_are_not_kept_are_removed_from_the_copy(bed: Bed) -> None:
    """While connected, and by the next connection; what has arrived of a file is not copied."""
    for name in ("1-ckpt-10", "2-ckpt-20", ".parts"):
        (bed.run / "checkpoints" / name).mkdir(parents=True)
        bed.append(f"checkpoints/{name}/data", name)
    first = bed.copy()
    assert first.push()
    assert {name for name in bed.copied() if "checkpoints" in name} == {
        "checkpoints/1-ckpt-10/data",
        "checkpoints/2-ckpt-20/data",
    }
    shutil.rmtree(bed.run / "checkpoints" / ".parts")
    shutil.rmtree(bed.run / "checkpoints" / "1-ckpt-10")
    os.remove(bed.run / "record.json")  # of other files nothing is removed
    assert first.push()
    first.close()
    assert bed.copied() == {**bed.content(), "record.json": "{}"}
    assert not (bed.state / "run" / "checkpoints" / "1-ckpt-10").exists()
    shutil.rmtree(bed.run / "checkpoints")
    second = bed.copy()
    assert second.push()
    second.close()
    assert bed.copied() == {**bed.content(), "record.json": "{}"}


def test_a_new_connection_sends_what_the_copy_lacks(bed: Bed) -> None:
    first = bed.copy()
    assert first.push()
    first.close()
    bed.append("logs/worker-0.log", "y" * 10)
    os.remove(bed.state / "run" / "record.json")
    (bed.state / "run" / "events.jsonl").write_text("")
    second = bed.copy()
    assert second.push()
    second.close()
    assert bed.copied() == bed.content()


def test_an_empty_place_gets_everything(bed: Bed) -> None:
    copy = bed.copy(NUMBER + 1)
    assert copy.push()
    copy.close()
    assert bed.copied() == bed.content()


def test_an_older_supervisor_changes_nothing(bed: Bed) -> None:
    older = bed.copy()
    assert older.push()
    run_copy.take_copy(bed.state, bed.state / "no-secrets", io.BytesIO())
    before = bed.copied()
    bed.append("events.jsonl", '{"kind": "late"}\n')
    assert not older.push()
    assert bed.superseded == 1
    assert older.is_superseded
    again = bed.copy()
    assert not again.push()
    assert bed.copied() == before


def test_a_copy_that_cannot_be_reached_is_told_once(bed: Bed) -> None:
    copy = RunCopy(bed.run, ["false"], bed.said.append, bed.note)
    assert not copy.push()
    assert not copy.push()
    copy.push_journal()
    assert bed.said == ["warning: the copy of the run directory is behind: its pod does not answer; still trying"]


def test_a_copy_is_taken_over_with_its_secrets(bed: Bed, tmp_path: Path) -> None:
    packed = io.BytesIO()
    packed.write(b'{"TOKEN": "xyzzy"}\n')
    with tarfile.open(fileobj=packed, mode="w|") as archive:
        run_copy.pack_run(archive, bed.run / "events.jsonl", "events.jsonl")
    packed.seek(0)
    run_copy.put_copy(bed.state, bed.state / "secrets.json", packed)
    for number in (1, 2):
        taken = io.BytesIO()
        run_copy.take_copy(bed.state, bed.state / "secrets.json", taken)
        taken.seek(0)
        assert json.loads(taken.readline()) == {"number": number, "secrets": {"TOKEN": "xyzzy"}}
    run_copy.unpack_copy(taken, tmp_path, "home")
    assert (tmp_path / "home" / "events.jsonl").read_text() == '{"kind": "plan"}\n'


@pytest.mark.parametrize("name", ["../out", "/out", "run/../../out"])
def test_nothing_is_written_outside_the_run_directory(name: str, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w|") as archive:
        entry = tarfile.TarInfo(name)
        archive.addfile(entry, io.BytesIO())
    packed.seek(0)
    with pytest.raises(CopyError):
        run_copy.unpack_copy(packed, tmp_path / "runs", "home")
    assert not (tmp_path / "out").exists()


def test_an_incomplete_archive_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CopyError):
        run_copy.unpack_copy(io.BytesIO(), tmp_path, "home")
