"""Probe files that `tflaunch doctor` writes into checkpoint directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tflaunch_worker.features.doctor import host_facts

pytestmark = pytest.mark.unit


def test_a_mark_is_left_in_the_nearest_directory_that_exists(tmp_path: Path) -> None:
    """The program may create the directory itself."""
    left = host_facts.mark(str(tmp_path / "run" / "state"), "token")
    assert left == str(tmp_path / ".tflaunch-token")
    host_facts.unmark(left)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("directory", ["", "state", "./state", "/"])
def test_no_mark_is_left_where_nothing_of_the_user_is(
    directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert host_facts.mark(directory, "token") is None
    assert list(tmp_path.iterdir()) == []
