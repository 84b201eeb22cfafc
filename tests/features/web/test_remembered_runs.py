"""The list of runs that a page asks for again and again."""

import shutil
from pathlib import Path

import pytest

from support.specs import clustered
from tflaunch.client import run_list
from tflaunch.client.run_list import RunEntry
from tflaunch.features.web import app
from tflaunch.plan import serialize
from tflaunch.store.journal import Journal
from tflaunch.store.run_dir import RunDirectory


def begun(name: str) -> tuple[RunDirectory, Journal]:
    directory = RunDirectory(name)
    journal = Journal(directory, 0)
    journal.record_plan(directory, serialize.as_json(clustered({"worker": 2})), 0.0)
    return directory, journal


def end(journal: Journal, code: int) -> None:
    journal.record_end(code, [], "failed" if code else "succeeded")
    journal.close()


def test_runs_that_have_ended_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as nothing is written to their journals; those that were removed are gone."""
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))
    read: list[str] = []
    entry_of = run_list.entry_of

    def noted(directory: Path) -> RunEntry:
        read.append(directory.name)
        return entry_of(directory)

    (first, its_journal), (second, other_journal), (live, journal) = map(begun, ("first", "second", "live"))
    end(its_journal, 0)
    end(other_journal, 0)
    runs = app.RememberedRuns()
    assert runs.overview() == run_list.overview()
    monkeypatch.setattr(app, "entry_of", noted)
    assert [entry.run for entry in runs.overview()] == [entry.run for entry in run_list.overview()]
    assert read == [live.run]
    end(journal, 1)
    shutil.rmtree(second.path)
    assert {entry.run: entry.state for entry in runs.overview()} == {first.run: "succeeded", live.run: "failed"}
    read.clear()
    end(Journal(RunDirectory.existing(first.path, first.path / "logs"), 2), 2)
    assert {entry.run: entry.exit_code for entry in runs.overview()} == {first.run: 2, live.run: 1}
    assert read == [first.run]
