"""The journal and other files of lines hold a prefix of what happened; annotations between events change no job."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.job_history import HERE, History, mirrored
from tflaunch.core import replay
from tflaunch.core.annotations import FaultInjected, Growth, HangExplained, HangNoticed, MemoryGrew, StartExplained
from tflaunch.core.events import Interrupted, TaskExited
from tflaunch.core.job_state import Phase
from tflaunch.core.replay import DamagedRecordError
from tflaunch.errors import TflaunchError
from tflaunch.private_files import append, open_to_append
from tflaunch.store import journal, run_dir
from tflaunch.store.journal import Journal, TakenOverError
from tflaunch.store.run_dir import RunDirectory


class Place:
    """A run's directory on a disk with limited room for its journal."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.directory = RunDirectory.existing(path, path / "logs")
        self.room = 1 << 30
        self.journal = Journal(self.directory)
        self._write = os.write
        patch.setattr(os, "write", self._take)

    def _take(self, file: int, data: bytes) -> int:
        taken = min(len(data), self.room)
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= taken
        return self._write(file, data[:taken])

    def happens(self, count: int = 1) -> None:
        for number in range(count):
            self.journal.record(Interrupted(number), [], 0.0)

    def records(self) -> list[dict[str, Any]]:
        lines = (self.directory.path / run_dir.JOURNAL_NAME).read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


@pytest.mark.parametrize("room", [0, 1, 100, 200])
def test_records_wait_for_room_up_to_a_limit(place: Place, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    place.happens(2)
    place.room = room
    place.happens(5)
    assert place.journal.lost == 7 - len(place.records())
    place.room = 1 << 30
    place.happens()
    assert [record["seq"] for record in place.records()] == list(range(8))
    assert place.journal.lost == 0
    monkeypatch.setattr(journal, "_MOST_WAITING", 300)
    place.room = 0
    place.happens(50)
    place.room = 1 << 30
    place.happens(3)
    numbers = [record["seq"] for record in place.records()]
    assert numbers == list(range(len(numbers))), "a journal with a gap would be unreadable"
    assert 8 < len(numbers) < 58
    assert place.journal.lost == 61 - len(numbers)


def test_the_end_has_room_of_its_own(place: Place) -> None:
    """Its space is reserved at the beginning and freed for the final record, so that the exit code can be read."""
    reserve = place.directory.path / run_dir.RESERVE_NAME
    assert reserve.stat().st_size >= 64 * 1024
    place.room = 0
    place.happens(3)
    place.room = reserve.stat().st_size  # exactly the space that is free then
    place.journal.settle()
    assert place.journal.lost == 0
    place.journal.record_end(7, ["a log: 5 bytes could not be written"], "failed")
    assert not reserve.exists()
    *happened, end = place.records()
    assert len(happened) == 3
    assert (end["kind"], end["exit_code"], end["state"]) == ("ended", 7, "failed")
    assert end["losses"] == ["a log: 5 bytes could not be written"]


def test_it_has_one_writer_where_the_lock_does_not_hold(place: Place) -> None:
    """Whoever writes next goes on, and the journal stays readable."""
    other = Journal(place.directory)
    place.happens(2)
    with pytest.raises(TakenOverError, match="another tflaunch has taken over run"):
        other.note("supervisor", number=1)
    place.happens()
    assert [record["seq"] for record in place.records()] == [0, 1, 2]


def test_the_journal_of_another_version_is_refused_with_a_sentence(place: Place) -> None:
    """Version 0.1 wrote no format and other names of events. A record that is missing or repeated is found."""
    happened = {"seq": 1, "time": 0.0, "kind": "interrupted", "now": 0.0, "signal": 2}
    assert replay.check_record(happened, 1) == happened
    for number in (0, 2):
        with pytest.raises(DamagedRecordError, match=f"'seq' must be an integer from {number}"):
            replay.check_record(happened, number)
    record = {"seq": 0, "time": 0.0, "kind": "plan", "now": 0.0, "run": "mnist", "logs": "logs", "plan": {}}
    path = place.directory.path / run_dir.JOURNAL_NAME
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(TflaunchError, match=r"recorded by another version .*format 1.* use that version, or delete"):
        journal.read_journal(place.directory.path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b"one\n", b"one\n"),
        (b"one\ntw", b"one\n"),
        (b"on", b""),
        (b"one\n" + b"x" * 200_000, b"one\n"),
        (b"y" * 200_000 + b"\nx", b"y" * 200_000 + b"\n"),
    ],
)
def test_only_whole_lines_are_kept_and_appended(
    tmp_path: Path, before: bytes, after: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "lines", os.write
    path.write_bytes(before)
    descriptor = open_to_append(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[:5]))
        assert not append(descriptor, b"two and more\n")
        assert append(descriptor, b"two\n")
    os.close(descriptor)
    assert path.read_bytes() == after + b"two\n"
    os.close(open_to_append(tmp_path / "new"))
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0


STARTS = {"restart": {"max": 1, "backoff": [1, 1]}}


def recorded(*records: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"seq": number, **record} for number, record in enumerate(records, 1)]


def after_failure() -> tuple[History, float]:
    """Return a job that waits for its next attempt, and a time after that is due."""
    history = mirrored(1, **STARTS).ends("worker:0", 7)
    due = history.job.deadlines.resume_at
    assert history.job.phase is Phase.BACKING_OFF
    assert due is not None
    return history, due + 0.1


def test_what_they_tell_is_read_again_and_the_job_stays() -> None:
    """Whatever the time: a deadline that has passed is the affair of the next event."""
    history, now = after_failure()
    records = recorded(
        {"kind": "fault_injected", "now": now, "what": "kill worker:0"},
        {"kind": "memory_grew", "now": now, "host": HERE, "task": "worker:0", "attempt": 0, "rate": 9.0, "left": 60.0},
        {"kind": "hang_explained", "now": now, "sentence": "worker:0 sleeps"},
        {"kind": "hang_noticed", "now": now, "attempt": 0, "sentence": "worker:0 sleeps"},
        {"kind": "start_explained", "now": now, "attempt": 0, "sentence": "worker:0 imports"},
    )
    steps = list(replay.transitions(history.job, records))
    assert [type(one.event) for one in steps] == [FaultInjected, MemoryGrew, HangExplained, HangNoticed, StartExplained]
    assert all(step.job is history.job and not step.actions for step in steps)
    known = replay.annotations_in(records)
    growth = {"worker:0": Growth(0, 9.0, now, now + 60)}
    assert tuple(known) == (growth, "worker:0 sleeps", now, {}, ("worker:0 imports", 0), ("worker:0 sleeps", 0, now))
    assert known.growth_of(history.job.tasks["worker:0"]) is None  # it has ended


def test_one_that_was_a_step_of_an_earlier_version_is_one() -> None:
    """Its actions follow it: 0.2 looked at deadlines then, and no later record tells."""
    history, now = after_failure()
    noted = {"kind": "fault_injected", "now": now, "what": "kill worker:0"}
    acted = {"kind": "hold_ports", "host": HERE, "ports": {"worker:0": 0}, "exclusive": False}
    later = {"kind": "ports_held", "now": now + 1, "host": HERE, "ports": {"worker:0": 2222}}
    for between in ([], [{"kind": "notified", "name": "restarted-1"}]):
        *_, last = replay.transitions(history.job, recorded(noted, *between, acted, acted, later))
        assert (last.job.phase, last.job.attempt, last.now) == (Phase.RUNNING, 1, now + 1)
    *_, last = replay.transitions(history.job, recorded(noted, {"kind": "notified", "name": "restarted-1"}))
    assert last.job is history.job


def test_growing_memory_neither_ends_a_task_nor_changes_how_its_end_counts() -> None:
    quiet, grown = mirrored(1, **STARTS), mirrored(1, **STARTS)
    grown.happens(MemoryGrew(HERE, "worker:0", 0, 9.0, 60.0))
    killed = TaskExited(HERE, "worker:0", 0, None, 9, 5.0)
    assert grown.happens(killed).job == quiet.happens(killed).job
    of_none = {"kind": "memory_grew", "now": 1.0, "host": HERE, "task": "ps:7", "attempt": 0, "rate": 9.0, "left": 1.0}
    with pytest.raises(DamagedRecordError, match="ps:7"):
        list(replay.transitions(mirrored(1).job, recorded(of_none)))
