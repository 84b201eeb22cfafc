"""What a live run waits for: hosts, links, a backoff, a cluster that does not form."""

from __future__ import annotations

import pytest

from support.job_history import HERE, History, Willing, mirrored
from support.specs import clustered
from tflaunch.core.events import HostDelayed, LinkLost, TaskExited, TaskGone
from tflaunch.features.web.waits import Wait, waits_of

pytestmark = pytest.mark.unit

EPOCH = 5000.0
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
    """The others are given up before."""
    job = three(elastic={"min_workers": 2, "retry": 600})
    for host in ("b", "c"):
        job.loses(host).waits(10)
    assert {wait.what[0]: wait.then for wait in waits_of(job.job, EPOCH)} == {
        "b": "then the run goes on without it", "c": END,
    }  # fmt: skip


def test_a_silent_host_may_have_living_tasks() -> None:
    """Until the lease, the grace and some seconds have passed."""
    job = three()
    job.happens(LinkLost("c", "the connection was reset"))
    assert waits_of(job.job, EPOCH) == [
        Wait("c is silent: the connection was reset", EPOCH + job.now + 45, "then its tasks count as dead")
    ]


def test_hosts_that_must_answer_are_named_with_what_delays_them() -> None:
    """Before anything has started."""
    job = History(clustered({"worker": ["a", "b"]}, timeouts={"connect": 10, "lease": 30}))
    job.happens(HostDelayed("b", "its pod is pending"))
    (wait,) = waits_of(job.job, EPOCH)
    assert wait.what.startswith("a, b must answer")
    assert wait.until >= EPOCH + job.now + 10


def test_a_backoff_ends_with_the_next_attempt_or_task() -> None:
    """Of the gang, or of a task that starts alone."""
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


def test_a_cluster_that_does_not_form_has_the_time_of_its_spec() -> None:
    """Without a limit, nothing ends the wait."""
    for timeouts, expected in (({"start": 600}, [600.0]), ({}, [])):
        job = History(clustered({"worker": 2}, timeouts=timeouts)).start_without_ports()
        started = job.now
        job.wait()
        assert [wait.until - EPOCH - started for wait in waits_of(job.job, EPOCH)] == expected
