"""The list of runs, read again and again, and where a run lives."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.specs import clustered
from tflaunch.client import control_client, run_list, run_location
from tflaunch.client.control_client import ControlClient
from tflaunch.client.run_list import RunEntry
from tflaunch.client.run_location import RunLocation, locate_run
from tflaunch.client.runs import NoSupervisorError
from tflaunch.errors import TflaunchError
from tflaunch.feature import Feature, Location
from tflaunch.features.web import remembered_runs
from tflaunch.plan import serialize
from tflaunch.store.journal import Journal, read_journal
from tflaunch.store.run_dir import JOURNAL_NAME, RunDirectory

pytestmark = pytest.mark.unit

NOW = 2e9


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that were read; there are none yet."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    found: list[str] = []
    entry_of = run_list.entry_of

    def noted(directory: Path) -> RunEntry:
        found.append(directory.name)
        return entry_of(directory)

    for module in (run_list, remembered_runs):
        monkeypatch.setattr(module, "entry_of", noted)
    return found


def begun(name: str, **matrix: str) -> tuple[RunDirectory, Journal]:
    directory = RunDirectory(name)
    journal = Journal(directory, 0)
    plan = clustered({"worker": 2})._replace(matrix=matrix)
    journal.record_plan(directory, serialize.as_json(plan), 0.0)
    return directory, journal


def ended(name: str, progress: tuple[int | None, dict[str, float]] = (None, {}), **matrix: str) -> Path:
    directory, journal = begun(name, **matrix)
    journal.record_end(0, [], "succeeded", progress=progress)
    journal.close()
    return directory.path


def test_runs_that_have_ended_are_read_once(read: list[str]) -> None:
    """As long as nothing is written to their journals; those that were removed are gone."""
    first, second = ended("first"), ended("second")
    live, journal = begun("live")
    runs = remembered_runs.RememberedRuns()
    assert runs.overview() == run_list.overview()
    read.clear()
    assert [entry.run for entry in runs.overview()] == [entry.run for entry in run_list.overview()]
    assert read.count(first.name) == read.count(second.name) == 1  # by the second of the two
    assert read.count(live.run) == 2
    journal.record_end(1, [], "failed")
    journal.close()
    shutil.rmtree(second)
    assert {entry.run: entry.state for entry in runs.overview()} == {first.name: "succeeded", live.run: "failed"}
    read.clear()
    resumed = Journal(RunDirectory.existing(first, first / "logs"), 2)
    resumed.record_end(2, [], "failed")
    resumed.close()
    assert {entry.run: entry.exit_code for entry in runs.overview()} == {first.name: 2, live.run: 1}
    assert read == [first.name]


@pytest.mark.usefixtures("read")
@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (None, "RUN STATE EXIT TASKS STARTED LASTED lr STEP accuracy loss"),
        (85, "RUN STATE EXIT STARTED lr STEP accuracy loss"),
        (80, "RUN STATE EXIT STARTED lr STEP accuracy"),
        (62, "RUN STATE EXIT STARTED lr"),
        (20, "RUN STATE EXIT"),
    ],
)
def test_a_terminal_shows_the_columns_that_fit(width: int | None, titles: str) -> None:
    """Those that matter most; a pipe gets all. Names of metrics were once recorded as the program had sent them."""
    old = ended("old", (7, {"\x1b]0;x\x07": 1.0, "\u202e": 2.0}))
    assert run_list.overview()[0].metrics == {r"\x1b]0;x\x07": 1.0, r"\u202e": 2.0}
    shutil.rmtree(old)
    ended("run-lr0.1", (7, {"accuracy": 0.5, "loss": 1.25}), lr="0.1")
    entries = run_list.overview()
    text = run_list.table(entries, entries[0].started or NOW, width)
    assert text.splitlines()[0].split() == titles.split()


# ---- where a run lives


THEIRS = RunLocation(Path())


def ours(directory: Path) -> RunLocation | None:
    return None


def theirs(directory: Path) -> RunLocation | None:
    return THEIRS


@pytest.mark.usefixtures("read")
def test_places_are_asked_in_order_and_imported_for_their_runs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that knows the run has it; no module exists for the mark that the run does not have."""
    path = RunDirectory("train").path
    (path / "ours").touch()
    (path / "theirs").touch()
    places = [Location((name,), f"{__name__}:{name}") for name in ("ours", "theirs")]
    feature = Feature(locations=(Location(("no",), "no.module:no"), *places))
    monkeypatch.setattr(run_location, "features", lambda: {"some": feature})
    assert locate_run(path) is THEIRS


@pytest.mark.usefixtures("read")
def test_a_run_that_has_not_begun_has_no_supervisor_to_connect_to() -> None:
    """An empty journal is damaged."""
    path = RunDirectory("train").path
    assert run_list.entry_of(path).state == "not begun"
    with pytest.raises(TflaunchError, match=f"run {path.name} has not begun"):
        read_journal(path)
    (path / JOURNAL_NAME).touch()
    assert run_list.entry_of(path).state == "unreadable"
    with pytest.raises(NoSupervisorError):
        ControlClient(path)
    control_client.request_stop(path, None)
