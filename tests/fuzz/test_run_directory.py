"""Damaged run directories: which damage is told, and how; `fuzz.run_directory` has any other."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.recorded_run import record
from fuzz.run_directory import run_command
from tflaunch.client import run_list
from tflaunch.errors import TflaunchError
from tflaunch.features.slurm import jobs
from tflaunch.store import journal
from tflaunch.store.run_dir import JOURNAL_NAME

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFLAUNCH_HOME", str(tmp_path))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"job": 17}', '{"job": "17; rm"}', '{"job": "\\ud800"}', "[" * 9000])
def test_a_damaged_note_of_a_job_is_none(tmp_path: Path, text: str) -> None:
    """Slurm is queried for job numbers only."""
    (tmp_path / "slurm.json").write_text(text)
    assert jobs.job_of(tmp_path) is None
    jobs.note_job(tmp_path, "17_4")
    assert jobs.job_of(tmp_path) == "17_4"


def test_text_that_is_not_unicode_is_shown_all_the_same() -> None:
    """A path may contain any byte, and a journal stores it as a lone surrogate."""
    path = record(has_ended=False) / JOURNAL_NAME
    path.write_bytes(path.read_bytes().replace(b'"host":"localhost"', b'"host":"localhost","note":"\\udc80"'))
    assert run_command(["events"]) == (0, "")
    assert run_command(["events", "--json"]) == (0, "")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda line: line[:-5], "column"),
        (lambda line: line.replace(b'"time":', b'"tame":'), "'time' must be a number"),
        (lambda line: line.replace(b'"kind":"host_joined"', b'"kind":["x"]'), "'kind' must be text"),
        (lambda line: line.replace(b'"localhost"', b'"far"'), "is about host 'far', which the plan does not"),
        (lambda line: line.replace(b'"localhost"', b"1e999"), "number"),
    ],
)
def test_damage_is_told_with_its_place(damage: Callable[[bytes], bytes], reason: str) -> None:
    """The run, the line, the file, the cause, and where the logs are; other runs are still listed."""
    sound, run = record(has_ended=True), record(has_ended=False)
    path = run / JOURNAL_NAME
    lines = path.read_bytes().split(b"\n")
    lines[1] = damage(lines[1])
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(TflaunchError) as caught:
        journal.read_job(run)
    told = str(caught.value)
    assert told.startswith(f"run {run.name}: line 2 of {path} is damaged (")
    assert reason in told
    assert told.endswith(f"what its tasks wrote is in {run / 'logs'}")
    states = {entry.run: entry.state for entry in run_list.overview()}
    assert states == {sound.name: "succeeded", run.name: "unreadable"}
