"""Ends that need nobody's help: tasks that do not die, and hosts that do not confirm it."""

from __future__ import annotations

import pytest

from support.job_history import HERE, History, mirrored
from support.specs import clustered
from tflaunch.core.actions import AbandonHost
from tflaunch.core.events import (
    HostJoined,
    HostLeaving,
    Interrupted,
    LinkLost,
    LinkRestored,
    NamesResolved,
    PortsHeld,
    StopRequested,
    TaskExited,
    TaskGone,
    TaskLingers,
    TaskStarted,
    TimePassed,
)
from tflaunch.core.job_state import Phase
from tflaunch.explain import summary

pytestmark = pytest.mark.unit

FENCE = 10 + 5  # grace and margin of a job without a lease


def passes(job: History, seconds: float) -> History:
    job.now += seconds
    return job.happens(TimePassed())


def far() -> History:
    history = History(clustered({"worker": ["h1", "h2"]}, timeouts={"lease": 30, "grace": 10}))
    history.happens(HostJoined("h1"), HostJoined("h2"))
    history.happens(NamesResolved("h1", {"h2": "10.0.0.2"}), NamesResolved("h2", {"h1": "10.0.0.1"}))
    history.happens(PortsHeld("h1", {"worker:0": 2222}), PortsHeld("h2", {"worker:1": 2222}))
    return history.happens(*[TaskStarted(f"h{number + 1}", f"worker:{number}", 0, 7, 0.0) for number in range(2)])


def test_a_host_that_confirms_nothing_is_given_up_after_grace_kill_and_fence() -> None:
    """The exit code and the summary tell that its tasks may still run."""
    job = mirrored().happens(StopRequested(1.0))
    passes(job, 1 + FENCE - 0.1)
    assert job.job.phase is Phase.STOPPING
    passes(job, 0.1)
    assert (job.job.phase, job.job.exit_code) == (Phase.ENDED, 125)
    assert AbandonHost(HERE, ("worker:0", "worker:1")) in job.actions
    assert summary.summary(job.job, "/logs", lambda *_: []).splitlines()[0] == (
        "may still run: worker:0 (pid 1 on localhost): its host has not confirmed its end, worker:1 (pid 1 on"
        " localhost): its host has not confirmed its end; look there with ps, and end it before the next run"
    )


def test_a_process_that_waits_in_the_kernel_is_named_with_its_state() -> None:
    """And no other attempt follows, as the two would write to the same files."""
    job = mirrored(restart={"max": 3, "backoff": [0, 0]})
    job.happens(TaskExited(HERE, "worker:0", 0, 1, None, 0.0), TaskGone(HERE, "worker:0", 0))
    job.happens(TaskLingers(HERE, "worker:1", 0, 7, "state D in rpc_wait"))
    passes(job, FENCE + 1)
    assert (job.job.phase, job.job.exit_code) == (Phase.ENDED, 125)
    assert job.job.restarts.no_retry_reason == "worker:1 may still run"
    assert "worker:1 (pid 7 on localhost): state D in rpc_wait" in summary.unended(job.job)[0]


def test_a_process_that_ends_late_is_not_told_of() -> None:
    """Its server answered again."""
    job = mirrored().happens(StopRequested(1.0), TaskLingers(HERE, "worker:1", 0, 7, "state D in rpc_wait"))
    job.ends("worker:0", None, 9).ends("worker:1", None, 9)
    assert (job.job.phase, job.job.exit_code, job.job.unended()) == (Phase.ENDED, 143, [])


def test_a_success_whose_servers_do_not_end_is_not_reported_as_one() -> None:
    """The result is there, and so may be the processes."""
    job = History(clustered({"chief": 1, "worker": 1, "ps": 1})).start().ends("chief:0")
    while job.job.phase is not Phase.ENDED:
        job.wait()
    assert (job.job.phase, job.job.exit_code) == (Phase.ENDED, 125)
    assert [task.task for task in job.job.unended()] == ["worker:0", "ps:0"]


def test_the_third_signal_waits_for_nothing() -> None:
    job = mirrored().happens(Interrupted(2), Interrupted(2))
    assert job.job.phase is Phase.STOPPING
    job.happens(Interrupted(2))
    assert (job.job.phase, job.job.exit_code, len(job.job.unended())) == (Phase.ENDED, 125, 2)


def test_a_host_that_leaves_and_does_not_end_is_given_up() -> None:
    """It may keep its link for ever."""
    job = far().happens(HostLeaving("h2", "its agent was terminated there", is_drain=True))
    job.happens(TaskExited("h1", "worker:0", 0, None, 15, 0.0, was_told=True), TaskGone("h1", "worker:0", 0))
    for _ in range(5):
        if job.job.phase is not Phase.ENDED:
            job.wait()
    assert (job.job.phase, job.job.exit_code) == (Phase.ENDED, 125)


def test_a_host_whose_link_was_cut_gets_its_time_once_it_is_back() -> None:
    """It has only then got the order to stop its tasks."""
    job = far().happens(StopRequested(1.0))
    job.happens(TaskExited("h1", "worker:0", 0, None, 15, 0.0), TaskGone("h1", "worker:0", 0), LinkLost("h2", "cut"))
    job.now += 40
    job.happens(LinkRestored("h2", is_leaving=False))
    passes(job, 30)
    assert job.job.phase is Phase.STOPPING
    passes(job, 26)
    assert (job.job.phase, job.job.exit_code) == (Phase.ENDED, 125)
