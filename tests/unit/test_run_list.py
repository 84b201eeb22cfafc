"""The list of runs, read again and again."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from support.specs import clustered
from tflaunch.client import run_list
from tflaunch.client.run_list import RememberedRuns, RunEntry
from tflaunch.plan import serialize
from tflaunch.store import run_lock
from tflaunch.store.history import Figures, HistoryWriter, Moment
from tflaunch.store.journal import Journal
from tflaunch.store.run_dir import RunDirectory

pytestmark = pytest.mark.unit


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that were read; there are none yet."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    found: list[str] = []
    entry_of = run_list.entry_of

    def noted(directory: Path) -> RunEntry:
        found.append(directory.name)
        return entry_of(directory)

    monkeypatch.setattr(run_list, "entry_of", noted)
    return found


def begun(name: str) -> tuple[RunDirectory, Journal]:
    """Return a run that has begun."""
    directory = RunDirectory(name)
    journal = Journal(directory, 0)
    journal.record_plan(directory, serialize.as_json(clustered({"worker": 2})), time.monotonic())
    return directory, journal


def ended(name: str) -> Path:
    """Return the directory of a run that has ended."""
    directory, journal = begun(name)
    journal.record_end(0, [], "succeeded")
    journal.close()
    return directory.path


def test_of_a_live_run_only_its_progress_is_read_while_its_journal_says_nothing_new(read: list[str]) -> None:
    """Its supervisor's death is not in the journal."""
    directory, journal = begun("live")
    lock = run_lock.take_lock(directory.path)
    history, runs = HistoryWriter(directory.path), RememberedRuns()
    for step in (5, 6):
        history.add(Moment(time.time(), {"worker:0": Figures(step)}))
        (entry,) = runs.overview()
        assert (entry["state"], entry["step"]) == ("joining", step)
    assert read == [directory.run]
    os.close(lock)
    (entry,) = runs.overview()
    assert entry["state"] == "lost"
    journal.close()


@pytest.mark.usefixtures("read")
def test_names_of_metrics_in_the_journal_of_an_earlier_version_are_printable() -> None:
    """They were recorded as the program had sent them."""
    directory = RunDirectory("old")
    journal = Journal(directory, 0)
    plan = clustered({"worker": 1})._replace(matrix={"lr": "0.1"})
    journal.record_plan(directory, serialize.as_json(plan), time.monotonic())
    journal.record_end(0, [], "succeeded", progress=(7, {"\x1b]0;x\x07": 1.0, "\u202e": 2.0}))
    journal.close()
    entries = run_list.overview()
    assert entries[0]["metrics"] == {r"\x1b]0;x\x07": 1.0, r"\u202e": 2.0}
    assert all(line.isprintable() for line in run_list.table(entries, time.time()).splitlines())


def test_runs_that_have_ended_are_read_once(read: list[str]) -> None:
    """As long as nothing is written to their journals; those that were removed are gone."""
    first, second = ended("first"), ended("second")
    live, journal = begun("live")
    runs = RememberedRuns()
    assert runs.overview() == run_list.overview()
    read.clear()
    assert [entry["run"] for entry in runs.overview()] == [entry["run"] for entry in run_list.overview()]
    assert read.count(first.name) == read.count(second.name) == 1  # by the second of the two
    assert read.count(live.run) == 2
    journal.record_end(1, [], "failed")
    journal.close()
    shutil.rmtree(second)
    assert {entry["run"]: entry["state"] for entry in runs.overview()} == {first.name: "succeeded", live.run: "failed"}
    read.clear()
    resumed = Journal(RunDirectory.existing(first, first / "logs"), 2)
    resumed.record_end(2, [], "failed")
    resumed.close()
    assert {entry["run"]: entry["exit_code"] for entry in runs.overview()} == {first.name: 2, live.run: 1}
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
    """Those that matter most; a pipe gets all."""
    directory = RunDirectory("run-lr0.1")
    journal = Journal(directory, 0)
    plan = clustered({"worker": 1})._replace(matrix={"lr": "0.1"})
    journal.record_plan(directory, serialize.as_json(plan), time.monotonic())
    journal.record_end(0, [], "succeeded", progress=(7, {"accuracy": 0.5, "loss": 1.25}))
    journal.close()
    text = run_list.table(run_list.overview(), time.time(), width)
    assert text.splitlines()[0].split() == titles.split()
