"""The timeline of a run: which task ran when, how each attempt ended, and why."""

from __future__ import annotations

import pytest

from support.job_history import HERE, History
from support.specs import clustered
from tflaunch.core.annotations import Annotation, FaultInjected
from tflaunch.core.events import (
    CheckpointCopied,
    Event,
    HostJoined,
    HostLost,
    LinkLost,
    LinkRestored,
    PortsHeld,
    TaskExited,
    TaskNotStarted,
)
from tflaunch.features.web.timeline import Timeline
from tflaunch.plan.model import Plan

pytestmark = pytest.mark.unit

EPOCH = 5000.0


class Watched(History):
    """A history whose steps a timeline collects."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.timeline = Timeline()

    def happens(self, *events: Event | Annotation) -> Watched:
        """Process events."""
        for event in events:
            before = self.job
            super().happens(event)
            self.timeline.add(before, event, self.job, self.now, EPOCH)
        return self


def watched(**fields: object) -> Watched:
    """Return the history of two workers that run."""
    history = Watched(clustered({"worker": 2}, **fields))
    history.start()
    return history


def test_every_attempt_has_its_end_and_its_reason() -> None:
    """Who failed says why; who was stopped because of it does not."""
    history = watched(restart={"max": 1, "backoff": [1, 1]})
    history.happens(TaskExited(HERE, "worker:1", 0, 7, None, 30.0, failure="KeyError at train.py:3", step=9))
    history.ends("worker:0", None, 15, was_told=True)
    history.ends("worker:1", 7)
    history.wait()
    history.start()
    history.ends("worker:0").ends("worker:1")
    found = history.timeline.as_json()
    spans = {(span["task"], span["attempt"]): span for span in found["tasks"]}
    failed = spans["worker:1", 0]
    assert (failed["state"], failed["ended"]) == ("failed", EPOCH + 30)
    assert failed["reason"] == "exited with code 7 (KeyError at train.py:3)"
    assert (spans["worker:0", 0]["state"], spans["worker:0", 0]["reason"]) == ("stopped", None)
    assert spans["worker:0", 1]["state"] == spans["worker:1", 1]["state"] == "succeeded"
    first, second = found["attempts"]
    assert (first["attempt"], first["culprit"], first["reason"]) == (0, "worker:1", "worker:1 exited with code 7")
    assert (second["attempt"], second["culprit"]) == (1, None)
    assert second["ended"] is not None


def test_an_attempt_that_follows_at_once_is_another_one() -> None:
    history = watched(restart={"max": 1, "backoff": [0, 0]})
    history.ends("worker:1", 7)
    history.ends("worker:0", None, 15, was_told=True)
    history.start()
    first, second = history.timeline.as_json()["attempts"]
    assert (first["attempt"], first["reason"]) == (0, "worker:1 exited with code 7")
    assert first["ended"] is not None
    assert (second["attempt"], second["ended"]) == (1, None)


def test_checkpoints_faults_and_hosts_are_marked() -> None:
    history = watched()
    history.happens(CheckpointCopied(HERE, "ckpt-7", 7, HERE), FaultInjected("KILL to worker:1"))
    history.happens(LinkLost(HERE, "timed out"), LinkRestored(HERE, is_leaving=False), HostLost(HERE, "no power"))
    marks = history.timeline.as_json()["marks"]
    assert [(mark["kind"], mark["text"]) for mark in marks] == [
        ("checkpoint", f"checkpoint ckpt-7 of {HERE} was copied"),
        ("fault", "KILL to worker:1"),
        ("host", f"the link to {HERE} is lost: timed out"),
        ("host", f"the link to {HERE} is back"),
        ("host", f"{HERE}: no power"),
    ]
    assert all(mark["time"] >= EPOCH for mark in marks)


def test_a_lost_host_ends_the_attempts_of_its_tasks() -> None:
    """They have no exit code, and are lost."""
    history = watched(restart={"max": 0})
    history.happens(HostLost(HERE, "no power", is_faulty=False))
    found = history.timeline.as_json()
    assert {span["state"] for span in found["tasks"]} == {"lost"}
    assert found["attempts"][0]["culprit"] == HERE


def test_a_task_that_cannot_start_has_an_attempt_too() -> None:
    history = Watched(clustered({"worker": 2}, restart={"max": 0}))
    history.happens(HostJoined(HERE), PortsHeld(HERE, {"worker:0": 1, "worker:1": 2}))
    history.happens(TaskNotStarted(HERE, "worker:0", 0, 127, "train.py was not found"))
    (span,) = history.timeline.as_json()["tasks"]
    assert (span["state"], span["reason"]) == ("failed", "train.py was not found")
