"""Jobs that wait for lost hosts which their next attempt needs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from support.job_history import Willing
from support.specs import clustered
from tflaunch.core.actions import JoinHost
from tflaunch.core.annotations import Annotations
from tflaunch.core.events import HostLost, HostUnreachable, Interrupted, StopRequested, TimePassed
from tflaunch.core.job_state import Cause, Phase
from tflaunch.core.time_limits import next_deadline
from tflaunch.explain.explanation import explain_run
from tflaunch.explain.messages import Logs, messages_about
from tflaunch.explain.status import StatusInputs, status
from tflaunch.explain.wording import absence_words

pytestmark = pytest.mark.unit

LIMITS = {"restart": {"max": 1, "backoff": [1, 1]}, "timeouts": {"lease": 30, "grace": 10, "lost_host": 300}}


def waiting(seconds: float = 2, *away: str, **fields: object) -> Willing:
    """Return a job on the hosts a, b and c that has been without b, or these, for so many seconds."""
    job = Willing(clustered({"worker": ["a", "b", "c"]}, **{**LIMITS, **fields}))
    for host in away or ("b",):
        job.loses(host)
    return job.waits(seconds)


def test_an_attempt_begins_the_moment_its_hosts_are_back_and_charges_nothing() -> None:
    job = waiting(250)
    assert job.job.phase is Phase.WAITING_FOR_HOSTS
    job.away.clear()
    due = next_deadline(job.job)
    assert due is not None
    job.waits(due - job.now)
    assert (job.job.phase, job.job.attempt) == (Phase.RUNNING, 1)
    assert not job.job.restarts.budget.charged


def test_pauses_between_tries_grow_to_half_a_minute() -> None:
    """A reboot is noticed soon, and a dead host costs little."""
    job, tries = waiting(0), []
    while job.job.phase is not Phase.ENDED:
        deadline = next_deadline(job.job)
        assert deadline is not None
        job.now = max(job.now, deadline)
        job.happens(TimePassed())
        tries += [job.now for action in job.seen if isinstance(action, JoinHost)]
    pauses = [later - earlier for earlier, later in pairwise(tries[1:])]
    assert pauses[0] == 1
    assert pauses[:-1] == sorted(pauses[:-1])
    assert max(pauses) == 30


def test_at_the_limit_the_job_ends_and_says_how_to_wait_longer() -> None:
    job = waiting(301)
    assert (job.job.phase, job.job.exit_code) == (Phase.ENDED, 125)
    assert job.job.culprit is not None
    assert (job.job.culprit.cause, job.job.culprit.name) == (Cause.UNREACHABLE, "b"), "not the task that fell victim"
    assert job.job.culprit.message == (
        "b: no route\nnot reached again within timeouts.lost_host (5 min); raise it, e.g. --set timeouts.lost_host=1h"
    )


@pytest.mark.parametrize("request_", [Interrupted(2), StopRequested(10.0)])
def test_whoever_ends_the_job_need_not_wait(request_: Interrupted | StopRequested) -> None:
    assert waiting().happens(request_).job.phase is Phase.ENDED


def test_without_a_limit_of_its_own_each_try_is_a_restart() -> None:
    """As in journals of earlier versions."""
    job = waiting(600, timeouts={"lease": 30, "grace": 10, "lost_host": 0})
    assert (job.job.phase, job.job.exit_code, len(job.job.restarts.budget.charged)) == (Phase.ENDED, 125, 1)


def test_a_spare_host_and_a_smaller_gang_come_before_the_wait() -> None:
    assert waiting(elastic={"min_workers": 2, "retry": 60}).job.phase is Phase.RUNNING
    assert waiting(spares=["s"]).job.phase is Phase.RUNNING
    job = waiting(100, "b", "c", elastic={"min_workers": 2, "retry": 60})
    assert job.job.phase is Phase.WAITING_FOR_HOSTS
    job.away.remove("c")
    assert job.waits(30).workers() == ["a", "c"]


def test_a_host_that_was_missing_for_long_does_not_shorten_the_wait_for_another() -> None:
    """The limit is that of the hosts without which the job cannot go on."""
    job = waiting(1000, elastic={"min_workers": 2, "retry": 10_000}).loses("c").waits(290)
    assert job.job.phase is Phase.WAITING_FOR_HOSTS
    assert job.waits(30).job.exit_code == 125


def test_a_host_that_flaps_ends_the_job_at_last() -> None:
    """Its losses cost no budget, but there are only so many restarts without a failure within the window."""
    job = waiting()
    for _ in range(30):
        job.away.clear()
        job.waits(20)
        if job.job.phase is Phase.ENDED:
            break
        job.away.add("b")
        job.happens(HostLost("b", "cut")).waits(5)
    assert (job.job.phase, job.job.exit_code) == (Phase.ENDED, 125)
    assert job.job.restarts.no_retry_reason == "restarted 10 times within 10 min, without a failure"


def test_what_users_read_names_host_reason_and_both_times() -> None:
    job = waiting(100)
    shown = status(job.job, StatusInputs(epoch=5000.0, logs="", is_alive=True, now=job.now))
    host = next(host for host in shown.hosts if host.host == "b")
    assert (shown.phase, shown.state) == ("waiting_for_hosts", "waiting_for_hosts")
    assert host.since is not None
    assert host.until == host.since + 300
    assert absence_words(host, job.now + 5000) == "waiting for b (no route) for 1 min 40 s; gives up in 3 min 20 s"
    before = waiting(0)
    soon = status(before.job, StatusInputs(epoch=5000.0, logs="", is_alive=True, now=before.now))
    explained = explain_run(before.job, soon, lambda *_: [], before.now + 5000, Annotations())
    assert "; 2 of 3 hosts connected: b down (no power)" in explained.sentence
    earlier = before.waits(0.5).job
    assert earlier.phase is Phase.BACKING_OFF
    before.now += 10
    before.happens(TimePassed())
    told = messages_about(earlier, HostUnreachable("b", "no route"), before.job, before.now, Logs("", lambda *_: []))
    assert told == ["waiting for b (no route) for at most 5 min (timeouts.lost_host); no restart is charged for that"]
