"""Hosts that are unreachable, silent, or resolve names wrongly: what happens to the job."""

from __future__ import annotations

import pytest

from support.job_history import History, Willing
from support.specs import clustered
from tflaunch.core import policy, preflight
from tflaunch.core.actions import JoinHost
from tflaunch.core.events import (
    HostDelayed,
    HostJoined,
    HostLeaving,
    HostLost,
    HostUnreachable,
    Interrupted,
    LinkLost,
    LinkRestored,
    NamesResolved,
    PortOpened,
    PortsHeld,
    TaskExited,
    TaskGone,
    TaskStarted,
)
from tflaunch.core.host_state import HostPhase
from tflaunch.core.job_state import Cause, Phase
from tflaunch.explain import summary

pytestmark = pytest.mark.unit


class Far:
    """A job on two hosts."""

    def __init__(self, **fields: object) -> None:
        cluster = {"worker": ["h1", "h2"]}
        fields = {"restart": {"max": 1, "backoff": [0, 0]}, "timeouts": {"lease": 30, "grace": 10}, **fields}
        self.history = History(clustered(cluster, **fields))

    @property
    def blamed(self) -> tuple[Cause, str, int | None]:
        """Cause and name of the culprit, and the exit code."""
        job = self.history.job
        assert job.culprit is not None
        return job.culprit.cause, job.culprit.name, job.exit_code

    def join(self) -> Far:
        """Let both hosts connect and pass the name check."""
        self.history.happens(HostJoined("h1"), HostJoined("h2"))
        return self

    def start(self) -> Far:
        """Start an attempt on both hosts."""
        history = self.history
        for host, other in (("h1", "10.0.0.2"), ("h2", "10.0.0.1")):
            history.happens(NamesResolved(host, {"h2" if host == "h1" else "h1": other}))
            history.happens(PortsHeld(host, {f"worker:{int(host[1]) - 1}": 2222}))
        for number, host in enumerate(("h1", "h2")):
            attempt = history.job.tasks[f"worker:{number}"].attempt
            history.happens(TaskStarted(host, f"worker:{number}", attempt, 1, 0.0))
            history.happens(PortOpened(host, f"worker:{number}", attempt))
        return self

    def fails(self, number: int) -> None:
        """Let a worker exit with 1 and be gone."""
        task, host = f"worker:{number}", f"h{number + 1}"
        self.history.happens(TaskExited(host, task, 0, 1, None, 0.0), TaskGone(host, task, 0))


def test_all_hosts_that_cannot_be_reached_are_named_at_once() -> None:
    history = Far().history.happens(HostUnreachable("h1", "refused"))
    assert history.job.phase is Phase.JOINING
    history.happens(HostUnreachable("h2", "no such name"))
    assert (history.job.phase, history.job.exit_code) == (Phase.ENDED, 3)
    assert history.job.culprit is not None
    assert history.job.culprit.message == "h1: refused\nh2: no such name"


def test_a_silent_host_delays_nobody_for_longer_than_the_limit() -> None:
    history = Far().history.happens(HostJoined("h1")).wait()
    assert (history.job.phase, history.job.exit_code) == (Phase.ENDED, 3)
    assert history.job.culprit is not None
    assert "h2: its agent did not answer within 10 s" in history.job.culprit.message


def test_a_name_that_leads_back_to_its_own_host_is_found_before_the_start() -> None:
    """TensorFlow would wait without end; exit code 3."""
    history = Far().join().history.happens(NamesResolved("h1", {"h2": "10.0.0.2"}))
    history.happens(NamesResolved("h2", {"h1": "127.0.1.1"}))
    assert (history.job.phase, history.job.exit_code) == (Phase.ENDED, 3)
    assert history.job.culprit is not None
    assert history.job.culprit.message == "on h2 the name 'h1' means 127.0.1.1, which is h2 itself"
    assert summary.summary(history.job, "/logs", lambda *_: []).splitlines()[1] == f"hint: {preflight.NAME_REMEDY}"


def test_a_link_that_comes_back_within_the_lease_changes_nothing() -> None:
    history = Far().join().start().history
    before = history.job.tasks
    history.happens(LinkLost("h2", "cut"))
    history.now += 20
    history.happens(LinkRestored("h2", is_leaving=False))
    assert history.job.phase is Phase.RUNNING
    assert history.job.tasks == before
    assert history.job.first_fence_at() is None
    assert history.actions == []


def test_a_link_that_is_not_restored_has_the_newest_reason() -> None:
    """The fence stays; what cannot be reached again, in a message of the end, is what was tried."""
    history = Far().join().start().history.happens(LinkLost("h2", "cut"))
    before = history.job.hosts["h2"]
    history.now += 2
    history.happens(HostDelayed("h2", "cut; there is no key"))
    assert history.job.hosts["h2"] == before._replace(reason="cut; there is no key")
    assert (before.phase, history.actions) == (HostPhase.DISCONNECTED, [])
    history.happens(LinkRestored("h2", is_leaving=False), HostDelayed("h2", "late"))
    assert history.job.hosts["h2"].phase is HostPhase.CONNECTED


def test_the_fence_begins_with_the_last_loss_of_the_link() -> None:
    """An agent whose greeting got lost has taken a message in between, which renewed its lease."""
    history = Far().join().start().history.happens(LinkLost("h2", "cut"))
    history.now += 20
    history.happens(LinkLost("h2", "cut"))
    host = history.job.hosts["h2"]
    assert host.fence_at == history.now + policy.fence(history.job.plan)
    assert host.since == history.now - 20


def test_nothing_starts_again_before_the_fence() -> None:
    """Only after lease, grace and a margin are the tasks of a silent host certainly dead."""
    history = Far().join().start().history.happens(LinkLost("h2", "cut"))
    lost_at = history.now
    history.wait()
    assert history.now == lost_at + 30 + 10 + 5
    assert history.job.phase is Phase.STOPPING
    assert history.stopped() == ["worker:0"]
    history.happens(TaskExited("h1", "worker:0", 0, None, 15, 0.0), TaskGone("h1", "worker:0", 0))
    assert history.actions == [JoinHost("h2")]
    history.happens(HostJoined("h2"))
    assert history.job.attempt == 1


def test_a_lost_host_takes_the_blame_for_its_peers() -> None:
    far = Far(restart={"max": 0}).join().start()
    far.history.happens(LinkLost("h2", "cut"))
    far.history.now += 9
    far.fails(0)
    assert far.blamed[:2] == (Cause.TASK, "worker:0")
    far.history.wait()
    assert far.history.job.phase is Phase.ENDED
    assert far.blamed == (Cause.HOST, "h2", 125)


def test_a_task_that_failed_before_keeps_the_blame() -> None:
    """A later link loss is independent; just after it, the message about the loss took longer to arrive."""
    far = Far(restart={"max": 0}).join().start()
    far.fails(0)
    far.history.now += 2
    far.history.happens(LinkLost("h2", "cut"))
    far.history.wait()
    assert far.blamed == (Cause.TASK, "worker:0", 1)
    far = Far(restart={"max": 0}).join().start()
    far.fails(0)
    far.history.now += 0.03
    far.history.happens(LinkLost("h2", "the connection was closed"), HostLost("h2", "its agent was killed"))
    assert far.blamed == (Cause.HOST, "h2", 125)


def test_an_agent_whose_lease_was_over_has_lost_its_host() -> None:
    """Even after a reconnect: the agent ends its tasks, and the host is the culprit, not they."""
    far = Far(restart={"max": 0}).join().start()
    history = far.history.happens(LinkLost("h2", "cut"), LinkRestored("h2", is_leaving=True))
    history.happens(HostLeaving("h2", "no message came from the supervisor for the lease of 30 s", is_drain=False))
    for host, task in (("h2", "worker:1"), ("h1", "worker:0")):
        history.happens(TaskExited(host, task, 0, None, 15, 0.0), TaskGone(host, task, 0))
    assert history.job.phase is Phase.ENDED
    assert far.blamed == (Cause.HOST, "h2", 125)


def test_a_host_may_be_drained_while_its_link_is_lost() -> None:
    """Then the lease is not the reason, and the restart is free."""
    far = Far(restart={"max": 1}).join().start()
    history = far.history.happens(LinkLost("h2", "cut"), LinkRestored("h2", is_leaving=True))
    assert history.job.culprit is None
    history.happens(HostLeaving("h2", "its agent was terminated there", is_drain=True))
    assert (far.blamed[0], history.job.phase) == (Cause.DRAIN, Phase.SAVING)


def test_without_a_lease_the_reason_of_the_lost_link_is_named() -> None:
    history = Far(timeouts={"lease": 0, "grace": 10}, restart={"max": 0}).join().start().history
    history.happens(LinkLost("h2", "its agent broke the protocol"), LinkRestored("h2", is_leaving=True))
    assert history.job.culprit is not None
    assert history.job.culprit.message == "its agent broke the protocol"


def test_a_second_ctrl_c_does_not_wait_for_a_host_that_cannot_be_told() -> None:
    """Its agent ends the tasks by itself; until then they may run, which the exit code tells."""
    history = Far().join().start().history.happens(LinkLost("h2", "cut"), Interrupted(2))
    history.happens(TaskExited("h1", "worker:0", 0, None, 15, 0.0), TaskGone("h1", "worker:0", 0))
    assert history.job.phase is Phase.STOPPING
    history.happens(Interrupted(2))
    assert (history.job.phase, history.job.exit_code) == (Phase.ENDED, 125)
    assert [task.task for task in history.job.unended()] == ["worker:1"]


def test_a_lost_host_without_a_task_that_counts_is_not_missed() -> None:
    far = Far(sidecars={"board": {"command": "board", "host": "h3"}})
    far.history.happens(HostJoined("h3"))
    history = far.join().start().history.happens(TaskStarted("h3", "board", 0, 1, 0.0), HostLost("h3", "killed"))
    assert history.job.phase is Phase.RUNNING


def test_a_host_that_breaks_the_protocol_is_not_tried_again() -> None:
    """Another agent there would do the same; an elastic job continues without the host."""
    job = Willing(clustered({"worker": ["a", "b"]}, restart={"max": 3, "backoff": [0, 0]}))
    job.happens(HostLost("b", "its agent broke the protocol", is_faulty=True))
    assert (job.job.phase, job.job.exit_code) == (Phase.ENDED, 125)
    assert job.job.restarts.no_retry_reason == "the same would happen on b again"
    elastic = {"min_workers": 1, "retry": 10}
    job = Willing(clustered({"worker": ["a", "b"]}, restart={"max": 3, "backoff": [0, 0]}, elastic=elastic))
    job.away.add("b")
    job.happens(HostLost("b", "its agent broke the protocol", is_faulty=True))
    assert (job.job.phase, job.job.exit_code, job.workers()) == (Phase.RUNNING, None, ["a"])
