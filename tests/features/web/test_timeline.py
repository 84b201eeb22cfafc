"""The timeline of a run, and what it waits for: which task ran when, how each attempt ended, and why."""

from __future__ import annotations

import pytest

from support.job_history import HERE, History, Willing, mirrored
from support.specs import clustered
from tflaunch.core.annotations import Annotation, FaultInjected
from tflaunch.core.events import (
    CheckpointCopied,
    Event,
    HostDelayed,
    HostJoined,
    HostLost,
    LinkLost,
    LinkRestored,
    PortsHeld,
    TaskExited,
    TaskGone,
    TaskNotStarted,
)
from tflaunch.features.web.timeline import Timeline, Wait, waits_of
from tflaunch.plan.model import Plan

EPOCH = 5000.0


class Watched(History):
    """A history whose steps a timeline collects."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.timeline = Timeline()

    def happens(self, *events: Event | Annotation) -> Watched:
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
    at_once = watched(restart={"max": 1, "backoff": [0, 0]}).ends("worker:1", 7)
    at_once.ends("worker:0", None, 15, was_told=True).start()
    first, second = at_once.timeline.as_json()["attempts"]  # type: ignore[attr-defined]
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
    """A task that cannot start has an attempt, too."""
    history = Watched(clustered({"worker": 2}, restart={"max": 0}))
    history.happens(HostJoined(HERE), PortsHeld(HERE, {"worker:0": 1, "worker:1": 2}))
    history.happens(TaskNotStarted(HERE, "worker:0", 0, 127, "train.py was not found"))
    (span,) = history.timeline.as_json()["tasks"]
    assert (span["state"], span["reason"]) == ("failed", "train.py was not found")
    history = watched(restart={"max": 0})
    history.happens(HostLost(HERE, "no power", is_faulty=False))
    found = history.timeline.as_json()
    assert {span["state"] for span in found["tasks"]} == {"lost"}
    assert found["attempts"][0]["culprit"] == HERE


LIMITS = {"restart": {"max": 3, "backoff": [20, 20]}, "timeouts": {"lease": 30, "grace": 10, "lost_host": 300}}
END = "then the run ends with exit code 125"


def three(**fields: object) -> Willing:
    """Return a job on the hosts a, b and c."""
    return Willing(clustered({"worker": ["a", "b", "c"]}, **{**LIMITS, **fields}))


def test_a_lost_host_is_waited_for_until_the_run_ends() -> None:
    job = three().loses("b")
    lost = job.now
    (wait,) = waits_of(job.waits(100).job, EPOCH)
    assert (wait.what, wait.until, wait.then) == ("b is lost: no route", EPOCH + lost + 300, END)
    assert wait.again is not None
    assert EPOCH + job.now < wait.again <= EPOCH + job.now + 30
    job.waits(300)
    assert job.job.exit_code == 125
    assert waits_of(job.job, EPOCH) == []


def test_a_run_that_can_do_with_fewer_hosts_ends_with_the_last_that_it_needs() -> None:
    job = three(elastic={"min_workers": 2, "retry": 600})
    for host in ("b", "c"):
        job.loses(host).waits(10)
    assert {wait.what[0]: wait.then for wait in waits_of(job.job, EPOCH)} == {
        "b": "then the run goes on without it", "c": END,
    }  # fmt: skip


def test_hosts_that_must_answer_are_named_with_what_delays_them() -> None:
    """The tasks of a silent one may live."""
    silent = three()
    silent.happens(LinkLost("c", "the connection was reset"))
    assert waits_of(silent.job, EPOCH) == [
        Wait("c is silent: the connection was reset", EPOCH + silent.now + 45, "then its tasks count as dead")
    ]
    job = History(clustered({"worker": ["a", "b"]}, timeouts={"connect": 10, "lease": 30}))
    job.happens(HostDelayed("b", "its pod is pending"))
    (wait,) = waits_of(job.job, EPOCH)
    assert wait.what.startswith("a, b must answer")
    assert wait.until >= EPOCH + job.now + 10


def test_a_backoff_ends_with_the_next_attempt_or_task() -> None:
    gang = mirrored(2, **LIMITS)
    gang.ends("worker:1", 1).ends("worker:0", None, 15, was_told=True)
    (wait,) = waits_of(gang.job, EPOCH)
    assert (wait.what, wait.then) == ("The backoff before attempt 1", "then attempt 1 starts")
    assert wait.until == pytest.approx(EPOCH + (gang.job.deadlines.resume_at or 0), abs=0.01)
    alone = History(clustered({"worker": 2, "evaluator": 1}, **LIMITS)).start()
    alone.happens(TaskExited(HERE, "evaluator:0", 0, 1, None, 0.0), TaskGone(HERE, "evaluator:0", 0))
    (wait,) = waits_of(alone.job, EPOCH)
    assert (wait.what, wait.then) == ("The backoff of evaluator:0", "then evaluator:0 starts again")
    assert EPOCH + alone.now < wait.until <= EPOCH + alone.now + 20
