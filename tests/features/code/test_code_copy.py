"""The copy of the user's code in the directory of a run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tflaunch.features.code import user_code
from tflaunch.features.code.selected_files import gather
from tflaunch.features.code.user_code import Code, read_copy
from tflaunch.plan.model import SyncPlan

pytestmark = pytest.mark.unit


@pytest.fixture
def code(tmp_path: Path) -> Code:
    root = tmp_path / "project"
    (root / "pkg").mkdir(parents=True)
    (root / "train.py").write_text("import pkg\n")
    (root / "pkg/model.py").write_text("LAYERS = 3\n")
    (root / "pkg/model.py").chmod(0o640)
    (root / "data").write_bytes(bytes(1000))
    (root / "same").symlink_to("pkg")
    (tmp_path / "run").mkdir(mode=0o700)
    return gather(SyncPlan(str(root), (".",), ()))


def contents(code: Code) -> dict[str, bytes]:
    """Return the content of each file as it would be sent."""
    return {file.path: b"".join(part.body for part in code.parts([(file.sha256, 0)])) for file in code.files}


def test_what_is_edited_later_is_sent_as_it_was(tmp_path: Path, code: Code) -> None:
    before = contents(code)
    kept = code.keep(tmp_path / "run")
    for path in (tmp_path / "run").rglob("*"):  # only the user can read it, whatever the mode that hosts get
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)
    (tmp_path / "project/train.py").write_text("import other\n")
    (tmp_path / "project/pkg/model.py").unlink()
    assert contents(kept) == before
    assert kept == read_copy(tmp_path / "run")
    assert (kept.links, [file[:4] for file in kept.files]) == (code.links, [file[:4] for file in code.files])
    assert kept.keep(tmp_path / "run") is kept


def test_large_files_stay_where_they_are(tmp_path: Path, code: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a program, there may be data."""
    monkeypatch.setattr(user_code, "MOST_COPIED", 500)
    before = contents(code)
    kept = code.keep(tmp_path / "run")
    assert contents(kept) == before
    assert sorted(path.name for path in (tmp_path / "run/code").rglob("*.*")) == ["model.py", "train.py"]
    assert not (tmp_path / "run/code/data").exists()
    assert kept == read_copy(tmp_path / "run")


def test_a_file_that_changes_before_it_is_copied_is_not_taken_for_the_same(tmp_path: Path, code: Code) -> None:
    """A copy would be refused by each host, as it has another hash; the original may be restored."""
    (tmp_path / "project/train.py").write_text("import other\n")
    kept = code.keep(tmp_path / "run")
    (found,) = [file for file in kept.files if file.path == "train.py"]
    assert found.source == tmp_path / "project/train.py"
    assert not (tmp_path / "run/code/train.py").exists()


def test_files_that_cannot_be_copied_are_read_where_they_are(tmp_path: Path, code: Code) -> None:
    (tmp_path / "run/code").write_text("in the way")
    assert contents(code.keep(tmp_path / "run")) == contents(code)
    (tmp_path / "run/code.json").unlink()
    (tmp_path / "run/code.json").mkdir()
    assert code.keep(tmp_path / "run") is code


def test_a_supervisor_in_a_cluster_gets_all_of_it(tmp_path: Path, code: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_code, "MOST_COPIED", 0)
    there = tmp_path / "there"
    there.joinpath("code").mkdir(parents=True)
    for path, name in code.export(there):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, there / name)
    found = read_copy(there)
    assert found is not None
    assert contents(found) == contents(code)
    assert found.keep(there) is found


@pytest.mark.parametrize("text", ["", '{"files": [', "[]", '{"files": [["a"]], "links": []}', '{"files": 3}'])
def test_a_description_that_is_incomplete(tmp_path: Path, text: str) -> None:
    assert read_copy(tmp_path) is None, "it was begun by an earlier version, or its tasks run where the code is"
    (tmp_path / "code.json").write_text(text)
    assert read_copy(tmp_path) is None


def test_names_that_are_not_text(tmp_path: Path) -> None:
    """As in bytes of another encoding."""
    (tmp_path / "project").mkdir()
    (tmp_path / "run").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "project") + b"/\xff")).write_text("x")
    kept = gather(SyncPlan(str(tmp_path / "project"), (".",), ())).keep(tmp_path / "run")
    assert read_copy(tmp_path / "run") == kept
    assert contents(kept) == {"\udcff": b"x"}
