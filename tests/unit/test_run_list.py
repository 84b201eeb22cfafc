"""The list of runs, and where a run lives."""

import shutil
from pathlib import Path

import pytest

from support.specs import clustered
from tflaunch.client import control_client, run_list, run_location
from tflaunch.client.control_client import ControlClient
from tflaunch.client.run_location import RunLocation, locate_run
from tflaunch.client.runs import NoSupervisorError
from tflaunch.errors import TflaunchError
from tflaunch.feature import Feature, Location
from tflaunch.plan import serialize
from tflaunch.store.journal import Journal, read_journal
from tflaunch.store.run_dir import JOURNAL_NAME, RunDirectory

NOW = 2e9


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no runs yet."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))


def ended(name: str, progress: tuple[int | None, dict[str, float]], **matrix: str) -> Path:
    directory = RunDirectory(name)
    journal = Journal(directory, 0)
    plan = clustered({"worker": 2})._replace(matrix=matrix)
    journal.record_plan(directory, serialize.as_json(plan), 0.0)
    journal.record_end(0, [], "succeeded", progress=progress)
    journal.close()
    return directory.path


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


def test_places_are_asked_in_order_and_imported_for_their_runs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that knows the run has it; no module exists for the mark that the run does not have."""
    path = RunDirectory("train").path
    (path / "ours").touch()
    (path / "theirs").touch()
    places = [Location((name,), f"{__name__}:{name}") for name in ("ours", "theirs")]
    feature = Feature(locations=(Location(("no",), "no.module:no"), *places))
    monkeypatch.setattr(run_location, "features", lambda: {"some": feature})
    assert locate_run(path) is THEIRS


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
