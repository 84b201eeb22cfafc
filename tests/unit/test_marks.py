"""Marks that `tflaunch doctor` leaves in directories for checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tflaunch_worker.inspect import host_facts

pytestmark = pytest.mark.unit


def test_a_mark_is_left_in_the_nearest_directory_that_exists(tmp_path: Path) -> None:
    """The directory itself may be made by the program."""
    left = host_facts.mark(str(tmp_path / "run" / "state"), "token")
    assert left == str(tmp_path / ".tflaunch-token")
    host_facts.unmark(left)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("directory", ["", "state", "./state", "/"])
def test_no_mark_is_left_where_nothing_of_the_user_is(
    directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the directory in which an agent happens to be, nor in the root."""
    monkeypatch.chdir(tmp_path)
    assert host_facts.mark(directory, "token") is None
    assert list(tmp_path.iterdir()) == []
