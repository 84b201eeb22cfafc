"""Hosts that are unreachable, silent, lost for a time, or resolve names wrongly: what happens to the job."""

from __future__ import annotations

from itertools import pairwise

from support.job_history import History, Willing
from support.specs import clustered
from tflaunch.core import policy
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
    StopRequested,
    TaskStarted,
    TimePassed,
)
from tflaunch.core.job_state import Cause, Phase
from tflaunch.core.states import HostPhase
from tflaunch.core.time_limits import next_deadline
from tflaunch.explain import summary
from tflaunch.explain.messages import Logs, messages_about
from tflaunch.explain.run_status import absence_words, missing_words
from tflaunch.mailbox import Mailbox


class Far(History):
    def __init__(self, **fields: object) -> None:
        limits = {"restart": {"max": 1, "backoff": [0, 0]}, "timeouts": {"lease": 30, "grace": 10}}
        super().__init__(clustered({"worker": ["h1", "h2"]}, **{**limits, **fields}))

    @property
    def blamed(self) -> tuple[Cause, str, int | None]:
        return self.culprit.cause, self.culprit.name, self.job.exit_code

    def runs(self) -> Far:
        self.happens(HostJoined("h1"), HostJoined("h2"))
        for host, other, task in (("h1", "h2", "worker:0"), ("h2", "h1", "worker:1")):
            self.happens(NamesResolved(host, {other: "10.0.0.9"}), PortsHeld(host, {task: 2222}))
        for host, task in (("h1", "worker:0"), ("h2", "worker:1")):
            self.happens(TaskStarted(host, task, 0, 1, 0.0), PortOpened(host, task, 0))
        return self


def test_all_hosts_that_cannot_be_reached_are_named_at_once() -> None:
    history = Far().happens(HostUnreachable("h1", "refused"))
    assert history.job.phase is Phase.JOINING
    history.happens(HostUnreachable("h2", "no such name"))
    assert (history.job.phase, history.job.exit_code) == (Phase.ENDED, 3)
    assert history.culprit.message == "h1: refused\nh2: no such name"
    silent = Far().happens(HostJoined("h1")).wait()
    assert (silent.job.phase, silent.job.exit_code) == (Phase.ENDED, 3)
    assert "h2: its agent did not answer within 10 s" in silent.culprit.message


def test_a_name_that_leads_back_to_its_own_host_is_found_before_the_start() -> None:
    """TensorFlow would wait without end; exit code 3."""
    history = Far().happens(HostJoined("h1"), HostJoined("h2"), NamesResolved("h1", {"h2": "10.0.0.2"}))
    history.happens(NamesResolved("h2", {"h1": "127.0.1.1"}))
    assert (history.job.phase, history.job.exit_code) == (Phase.ENDED, 3)
    assert history.culprit.message == "on h2 the name 'h1' means 127.0.1.1, which is h2 itself"
    assert (
        summary.summary(history.job, "/logs", lambda *_: [])
        .splitlines()[1]
        .startswith('hint: use addresses in cluster, set "hosts": {"h1": {"address": "10.0.0.5"}}, or ')
    )


def test_a_link_that_comes_back_within_the_lease_changes_nothing() -> None:
    """Until then, the fence stays, and the reason is what was tried last."""
    history = Far().runs()
    tasks = history.job.tasks
    before = history.happens(LinkLost("h2", "cut")).job.hosts["h2"]
    assert before.phase is HostPhase.DISCONNECTED
    history.now += 20
    history.happens(HostDelayed("h2", "cut; there is no key"))
    assert history.job.hosts["h2"] == before._replace(reason="cut; there is no key")
    history.happens(LinkRestored("h2", is_leaving=False), HostDelayed("h2", "late"))
    assert (history.job.phase, history.job.hosts["h2"].phase) == (Phase.RUNNING, HostPhase.CONNECTED)
    assert history.job.tasks == tasks
    assert (history.job.hosts["h2"].fence_at, history.actions) == (None, [])


def test_nothing_starts_again_before_the_fence() -> None:
    """Only after lease, grace and a margin are the tasks of a silent host certainly dead.

    It begins with the last loss of the link: an agent whose greeting got lost has taken a message in between, which
    renewed its lease.
    """
    history = Far().runs().happens(LinkLost("h2", "cut"))
    history.now += 20
    lost_at = history.now
    history.happens(LinkLost("h2", "cut"))
    host = history.job.hosts["h2"]
    assert (host.fence_at, host.since) == (lost_at + policy.fence(history.job.plan), lost_at - 20)
    history.wait()
    assert history.now == lost_at + 30 + 10 + 5
    assert history.job.phase is Phase.STOPPING
    assert history.stopped() == ["worker:0"]
    history.ends("worker:0", None, 15)
    assert history.actions == [JoinHost("h2")]
    history.happens(HostJoined("h2"))
    assert history.job.attempt == 1


def test_a_lost_host_takes_the_blame_for_its_peers() -> None:
    far = Far(restart={"max": 0}).runs()
    far.happens(LinkLost("h2", "cut"))
    far.now += 9
    far.ends("worker:0", 1)
    assert far.blamed[:2] == (Cause.TASK, "worker:0")
    far.wait()
    assert far.job.phase is Phase.ENDED
    assert far.blamed == (Cause.HOST, "h2", 125)
    for seconds, blamed in ((2, (Cause.TASK, "worker:0", 1)), (0.03, (Cause.HOST, "h2", 125))):
        far = Far(restart={"max": 0}).runs()
        far.ends("worker:0", 1)
        far.now += seconds  # a later loss is independent; just after it, the message about the loss took longer
        assert far.happens(LinkLost("h2", "cut"), HostLost("h2", "its agent was killed")).job.exit_code == blamed[2]
        assert far.blamed == blamed


def test_an_agent_whose_lease_was_over_has_lost_its_host() -> None:
    """Even after a reconnect: the agent ends its tasks, and the host is the culprit, not they."""
    far = Far(restart={"max": 0}).runs()
    history = far.happens(LinkLost("h2", "cut"), LinkRestored("h2", is_leaving=True))
    history.happens(HostLeaving("h2", "no message came from the supervisor for the lease of 30 s", is_drain=False))
    assert history.ends("worker:1", None, 15).ends("worker:0", None, 15).job.phase is Phase.ENDED
    assert far.blamed == (Cause.HOST, "h2", 125)


def test_a_host_may_be_drained_while_its_link_is_lost() -> None:
    """Then the lease is not the reason, and the restart is free. Without a lease, tasks end with the link."""
    far = Far(restart={"max": 1}).runs()
    history = far.happens(LinkLost("h2", "cut"), LinkRestored("h2", is_leaving=True))
    assert history.job.culprit is None
    history.happens(HostLeaving("h2", "its agent was terminated there", is_drain=True))
    assert (far.blamed[0], history.job.phase) == (Cause.DRAIN, Phase.SAVING)
    history = Far(timeouts={"lease": 0, "grace": 10}, restart={"max": 0}).runs()
    history.happens(LinkLost("h2", "its agent broke the protocol"), LinkRestored("h2", is_leaving=True))
    assert history.culprit.message == "its agent broke the protocol"


def test_a_second_ctrl_c_does_not_wait_for_a_host_that_cannot_be_told() -> None:
    """Its agent ends the tasks by itself; until then they may run, which the exit code tells."""
    history = Far().runs().happens(LinkLost("h2", "cut"), Interrupted(2)).ends("worker:0", None, 15)
    assert history.job.phase is Phase.STOPPING
    history.happens(Interrupted(2))
    assert (history.job.phase, history.job.exit_code) == (Phase.ENDED, 125)
    assert [task.task for task in history.job.unended()] == ["worker:1"]


def test_what_the_sender_of_a_signal_does_to_agents_is_not_told_as_its_cause() -> None:
    """Slurm ends all of a job at once, and says why a moment later."""
    history = Far().runs()
    terminated = HostLeaving("h2", "its agent was terminated there", is_drain=True)
    for event in (Interrupted(15, is_announced=True), terminated, LinkLost("h2", "cut")):
        assert history.told(event) == []
    told = history.told(Interrupted(15, "the time limit is reached"))
    assert told[0].startswith("the time limit is reached; ending worker:0, worker:1: sent TERM")
    mailbox, signal = Mailbox(), Interrupted(15, is_announced=True)
    for event in (terminated, LinkLost("h2", "cut"), signal):
        mailbox.put(event)
    assert mailbox.take_in_order(None, lag=60)[1] == [signal, terminated, LinkLost("h2", "cut")]


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
    """Whoever ends the job need not wait: nothing lives."""
    job = waiting(301)
    assert (job.job.phase, job.job.exit_code) == (Phase.ENDED, 125)
    assert (job.culprit.cause, job.culprit.name) == (Cause.UNREACHABLE, "b"), "not the task that fell victim"
    assert job.culprit.message == (
        "b: no route\nnot reached again within timeouts.lost_host (5 min); raise it, e.g. --set timeouts.lost_host=1h"
    )
    old = waiting(600, timeouts={"lease": 30, "grace": 10, "lost_host": 0}).job  # as in journals of earlier versions
    assert (old.phase, old.exit_code, len(old.restarts.budget.charged)) == (Phase.ENDED, 125, 1)
    for request in (Interrupted(2), StopRequested(10.0)):
        assert waiting().happens(request).job.phase is Phase.ENDED


def test_a_spare_host_and_a_smaller_gang_come_before_the_wait() -> None:
    job = waiting(100, "b", "c", elastic={"min_workers": 2, "retry": 60})
    assert job.job.phase is Phase.WAITING_FOR_HOSTS
    job.away.remove("c")
    assert job.waits(30).workers() == ["a", "c"]
    job = waiting(1000, elastic={"min_workers": 2, "retry": 10_000}).loses("c").waits(290)
    assert job.job.phase is Phase.WAITING_FOR_HOSTS, "one that was missing for long does not shorten the wait for it"
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
    shown = job.status(epoch=5000.0)
    host = next(host for host in shown.hosts if host.host == "b")
    assert (shown.phase, shown.state) == ("waiting for hosts", "waiting_for_hosts")
    assert host.since is not None
    assert host.until == host.since + 300
    assert absence_words(host, job.now + 5000) == shown.because
    assert shown.because == "waiting for b (no route) for 1 min 40 s; gives up in 3 min 20 s"
    before = waiting(0)
    assert missing_words(before.status()) == "2 of 3 hosts connected: b down (no power)"
    earlier = before.waits(0.5).job
    assert earlier.phase is Phase.BACKING_OFF
    before.now += 10
    before.happens(TimePassed())
    told = messages_about(earlier, HostUnreachable("b", "no route"), before.job, before.now, Logs("", lambda *_: []))
    assert told == ["waiting for b (no route) for at most 5 min (timeouts.lost_host); no restart is charged for that"]
