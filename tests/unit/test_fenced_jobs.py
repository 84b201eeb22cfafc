"""What the core makes of the hosts' addresses, and what it tells users about the fence."""

from __future__ import annotations

import pytest

from support.job_history import History
from support.specs import clustered
from tflaunch.core import port_fence
from tflaunch.core.actions import UpdateFence
from tflaunch.core.event_records import from_agent, from_record
from tflaunch.core.events import (
    Event,
    HostJoined,
    HostLost,
    NamesResolved,
    OutsiderRefused,
    PeerSeen,
    PortsHeld,
    PortUnfenced,
)
from tflaunch.core.job_state import Cause, Phase
from tflaunch.explain.messages import Logs, messages_about

pytestmark = pytest.mark.unit

HOSTS = {"chief": ["a"], "worker": ["b", "c"], "ps": ["a"]}
BEFORE: list[Event] = [
    HostJoined("a", "10.0.0.1 127.0.0.1 ::1"),
    HostJoined("b", "10.0.0.2 127.0.0.1 ::1"),
    HostJoined("c", "10.0.0.3 127.0.0.1 ::1"),
    *(NamesResolved(host, {other: "10.0.0.9" for other in "abc" if other != host}) for host in "abc"),
    PortsHeld("a", {"chief:0": 1, "ps:0": 2}),
    PortsHeld("b", {"worker:0": 1}),
    PortsHeld("c", {"worker:1": 1}),
]
ALL = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "127.0.0.1", "::1"]
LOGS = Logs("logs", lambda _task, _lines: [])


def started(**fields: object) -> History:
    """Return a job on three hosts whose tasks have been started."""
    history = History(clustered(HOSTS, **fields)).happens(*BEFORE)
    assert history.job.phase is Phase.RUNNING
    return history


def said(history: History, event: Event) -> list[str]:
    """Return the messages about an event."""
    before = history.job
    history.happens(event)
    return messages_about(before, event, history.job, history.now, LOGS)


def test_hosts_follow_the_cluster() -> None:
    """A lost host is kept out by the others; when it is back, it is admitted with its new address."""
    history = started()
    assert port_fence.admitted(history.job) == ALL
    history.happens(HostLost("c", "its agent was killed"))
    assert port_fence.admitted(history.job) == [address for address in ALL if address != "10.0.0.3"]
    updated = [action.host for action in history.actions if isinstance(action, UpdateFence)]
    assert updated == ["a", "b"]
    history.wait().happens(HostJoined("c", "10.0.0.4"))
    assert "10.0.0.4" in port_fence.admitted(history.job)
    assert [action.host for action in history.actions if isinstance(action, UpdateFence)] == ["a", "b"]


def test_an_address_that_changes_is_known_at_the_next_attempt() -> None:
    """Hosts get other addresses while a job trains for days."""
    history = started().happens(PortsHeld("c", {"worker:1": 1}, "10.0.0.7 127.0.0.1 ::1"))
    assert port_fence.admitted(history.job) == ["10.0.0.1", "10.0.0.2", "10.0.0.7", "127.0.0.1", "::1"]


def test_an_address_that_a_peer_comes_from_is_admitted() -> None:
    """Such as that of a router, which no host knows as its own."""
    history = started().happens(PeerSeen("a", "192.0.2.1"))
    assert "192.0.2.1" in port_fence.admitted(history.job)
    assert [action.host for action in history.actions if isinstance(action, UpdateFence)] == ["a", "b", "c"]
    history.happens(PeerSeen("b", "192.0.2.1"))
    assert not history.actions
    assert not started(network="open").happens(PeerSeen("a", "192.0.2.1")).actions


def test_a_host_that_does_not_know_its_addresses_opens_no_other() -> None:
    """The others admit it at the address from which it comes in the preflight."""
    history = History(clustered(HOSTS)).happens(*(HostJoined("c") if e == BEFORE[2] else e for e in BEFORE))
    assert port_fence.admitted(history.job) == [address for address in ALL if address != "10.0.0.3"]
    history.happens(PeerSeen("a", "10.0.0.3"))
    assert port_fence.admitted(history.job) == ALL


def test_an_outsider_is_named_once() -> None:
    history = started()
    (line,) = said(history, OutsiderRefused("a", "ps:0", "192.0.2.1"))
    assert line.startswith("refused a connection from 192.0.2.1 to ps:0 on a, ")
    assert line.endswith('leave out --no-preflight, which would have found it, or set "network": "open"')
    assert said(history, OutsiderRefused("b", "worker:0", "192.0.2.1")) == []
    lines = [said(history, OutsiderRefused("a", "ps:0", f"192.0.2.{number}")) for number in range(2, 100)]
    assert sum(map(len, lines)) == 15


def test_a_task_without_a_fence_is_told_once() -> None:
    history = started()
    (line,) = said(history, PortUnfenced("a", "ps:0", "the kernel does not allow it"))
    assert line == "warning: connections from everywhere can reach ps:0 on a: the kernel does not allow it"
    assert said(history, PortUnfenced("b", "worker:0", "the kernel does not allow it")) == []
    assert history.job.phase is Phase.RUNNING


def test_a_job_that_needs_its_fence_ends_without_it() -> None:
    history = started(network="fenced-or-fail").happens(PortUnfenced("a", "ps:0", "the kernel does not allow it"))
    assert history.job.phase is Phase.STOPPING
    assert history.job.exit_code is not None
    culprit = history.job.culprit
    assert culprit is not None
    assert culprit.cause is Cause.PORTS
    assert culprit.message.endswith('the kernel does not allow it; "network": "open" lets everybody through')


@pytest.mark.parametrize("source", ["", "h1", "10.0.0.256", "10.0.0.1 10.0.0.2", "\x1b[2J"])
def test_an_address_is_checked(source: str) -> None:
    with pytest.raises(ValueError, match="address"):
        from_agent("a", {"kind": "peer_seen", "source": source})


def test_a_journal_of_an_earlier_version_has_no_addresses() -> None:
    assert from_record({"kind": "host_joined", "host": "a"}) == HostJoined("a", "")
