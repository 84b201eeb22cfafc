"""Where a run lives: how that is found, and what commands learn about runs elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tflaunch.client import requests, run_list, run_location
from tflaunch.client.control_client import ControlClient, NoSupervisorError
from tflaunch.client.run_location import RunLocation, locate_run
from tflaunch.rooms import Location, Room
from tflaunch.store import run_lock
from tflaunch.store.run_dir import JOURNAL_NAME, RunDirectory

pytestmark = pytest.mark.unit


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run that has not begun."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    return RunDirectory("train").path


class TestFinding:
    """The files in the directory tell."""

    def test_places_are_asked_in_order_and_imported_for_their_runs_only(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first that knows the run has it; no module exists for the mark that the run does not have."""
        (path / "ours").touch()
        (path / "theirs").touch()
        places = (
            Location(("no",), "no.module:no"),
            *(Location((name,), f"{__name__}:{name}") for name in ("ours", "theirs")),
        )
        monkeypatch.setattr(run_location, "rooms", lambda: {"some": Room(locations=places)})
        assert locate_run(path) is THEIRS


THEIRS = RunLocation(Path())


def ours(directory: Path) -> RunLocation | None:
    """Be the finder of a place that does not know the run."""
    return None


def theirs(directory: Path) -> RunLocation | None:
    """Be the finder of a place that knows the run."""
    return THEIRS


class TestHere:
    """Runs on this machine."""

    def test_it_lives_as_long_as_its_lock_is_held(self, path: Path) -> None:
        """As `test_runs` has it, too."""
        lock = run_lock.take_lock(path)
        assert locate_run(path).is_live()
        os.close(lock)
        assert not locate_run(path).is_live()

    def test_without_records_it_has_not_begun_or_cannot_be_read(self, path: Path) -> None:
        """An empty journal is damaged."""
        assert run_list.entry_of(path)["state"] == "not begun"
        (path / JOURNAL_NAME).touch()
        assert run_list.entry_of(path)["state"] == "unreadable"

    def test_it_has_no_supervisor_to_connect_to(self, path: Path) -> None:
        with pytest.raises(NoSupervisorError):
            ControlClient(path)
        requests.request_stop(path, None)
