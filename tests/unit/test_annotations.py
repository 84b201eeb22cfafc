"""Annotations between the events of a journal: what they tell is known again after it was read, and no job reacts."""

from __future__ import annotations

from typing import Any

import pytest

from support.job_history import HERE, History, mirrored
from tflaunch.core import replay
from tflaunch.core.annotations import FaultInjected, Growth, HangExplained, MemoryGrew, StartExplained
from tflaunch.core.events import TaskExited
from tflaunch.core.job_state import Phase
from tflaunch.core.record_check import DamagedRecordError

pytestmark = pytest.mark.unit

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
        {"kind": "start_explained", "now": now, "attempt": 0, "sentence": "worker:0 imports"},
    )
    steps = list(replay.transitions(history.job, records))
    assert [type(step.event) for step in steps] == [FaultInjected, MemoryGrew, HangExplained, StartExplained]
    assert all(step.job is history.job and not step.actions for step in steps)
    known = replay.annotations_in(records)
    assert tuple(known) == (
        {"worker:0": Growth(0, 9.0, now, now + 60)},
        "worker:0 sleeps",
        now,
        {},
        ("worker:0 imports", 0),
    )
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


def test_one_about_an_unknown_task_is_damage() -> None:
    grew = {"kind": "memory_grew", "now": 1.0, "host": HERE, "task": "ps:7", "attempt": 0, "rate": 9.0, "left": 60.0}
    with pytest.raises(DamagedRecordError, match="ps:7"):
        list(replay.transitions(mirrored(1).job, recorded(grew)))


def test_an_end_after_one_is_as_before() -> None:
    """Growing memory neither ends a task nor changes how its end counts."""
    quiet = mirrored(1, **STARTS)
    grown = mirrored(1, **STARTS).happens(MemoryGrew(HERE, "worker:0", 0, 9.0, 60.0))
    killed = TaskExited(HERE, "worker:0", 0, None, 9, 5.0)
    assert grown.happens(killed).job == quiet.happens(killed).job
