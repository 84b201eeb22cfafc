"""Private networks of several hosts: the orders that join them, updates after changes, and hosts without one."""

from __future__ import annotations

from typing import Any

import pytest

from support.job_history import History
from support.specs import clustered
from tflaunch.core import port_fence
from tflaunch.core.actions import UpdateFence
from tflaunch.core.events import (
    Event,
    HostJoined,
    HostLost,
    LinkLost,
    LinkRestored,
    NamesResolved,
    NetworkRefused,
    OutsiderRefused,
    PortsHeld,
)
from tflaunch.core.job_state import Phase
from tflaunch.explain.messages import Logs, messages_about
from tflaunch_worker.agent.relay_frames import Frame, Network, read_frame, read_length, why_refused

pytestmark = pytest.mark.unit

CLUSTER = {"chief": ["a"], "worker": ["b", "c"], "ps": ["a"]}
JOINED: list[Event] = [
    *(HostJoined(host) for host in "abc"),
    *(NamesResolved(host, {other: "10.0.0.9" for other in "abc" if other != host}) for host in "abc"),
]
HELD: list[Event] = [
    PortsHeld("a", {"chief:0": 1001, "ps:0": 1002}),
    PortsHeld("b", {"worker:0": 1003}),
    PortsHeld("c", {"worker:1": 1004}),
]
KEYS = {"authority": "A", "certificate": "C", "key": "K"}


def history() -> History:
    """Return a job that has just asked for ports."""
    return History(clustered(CLUSTER, network="private")).happens(*JOINED)


def network(of: History, host: str) -> Network:
    """Return the order that the agent on a host gets, as it reads it."""
    told: dict[str, Any] = {**port_fence.network_of(of.job), **port_fence.own_network_of(of.job, host), **KEYS}
    lists = {name: {key: list(place) for key, place in told[name].items()} for name in ("hosts", "tasks")}
    return Network({**told, **lists})


def updated(of: History) -> list[str]:
    """Return the hosts that get a new order after a change."""
    return [action.host for action in of.actions if isinstance(action, UpdateFence)]


def test_each_host_knows_the_relays_and_the_tasks_of_all() -> None:
    """A relay listens on the port of its host's first task."""
    known = network(history().happens(*HELD), "b")
    assert (known.own, known.port_of, known.own_tasks) == ("127.90.0.2", "worker:0", ["worker:0"])
    assert known.hosts == {"127.90.0.1": ("a", 1001), "127.90.0.2": ("b", 1003), "127.90.0.3": ("c", 1004)}
    assert known.tasks == {
        "chief:0": ("127.90.0.1", 1001),
        "worker:0": ("127.90.0.2", 1003),
        "worker:1": ("127.90.0.3", 1004),
        "ps:0": ("127.90.0.1", 1002),
    }


def test_the_others_follow_a_lost_host() -> None:
    """And what it has when it is back."""
    running = history().happens(*HELD)
    running.happens(HostLost("c", "its agent was killed"))
    assert updated(running) == ["a", "b"]
    assert "127.90.0.3" not in network(running, "a").hosts
    running.wait().happens(HostJoined("c"), PortsHeld("c", {"worker:1": 1004}))
    assert updated(running)[:2] == ["a", "b"]
    assert "127.90.0.3" in network(running, "a").hosts


def test_a_host_whose_link_is_back_is_told_again() -> None:
    """The supervisor may be another one, with other keys."""
    running = history().happens(*HELD, LinkLost("b", "cut"))
    assert updated(running) == []
    assert updated(running.happens(LinkRestored("b", is_leaving=False))) == ["b"]


def test_hosts_without_private_networks_are_named_together() -> None:
    """Once all have answered, before anything starts."""
    job = history().happens(NetworkRefused("a", "user.max_user_namespaces is 0"), HELD[1])
    assert job.job.phase is Phase.PREPARING
    job.happens(NetworkRefused("c", "its Python has no TLS 1.3"))
    assert (job.job.phase, job.job.exit_code) == (Phase.ENDED, 3)
    assert job.job.culprit is not None
    assert job.job.culprit.message.splitlines() == [
        '"network": "private" is not possible on a: user.max_user_namespaces is 0',
        '"network": "private" is not possible on c: its Python has no TLS 1.3',
        'allow it there, or write "network": "fenced", which keeps other hosts out but not users of these',
    ]


def test_refused_connections_are_told_with_the_reason() -> None:
    """The address may well be one of the cluster."""
    running = history().happens(*HELD)
    event = OutsiderRefused("b", "worker:0", "192.0.2.1", "it belongs to another run")
    told = messages_about(running.job, event, running.job, running.now, Logs("logs", lambda _task, _lines: []))
    assert told == ["refused a connection from 192.0.2.1 to worker:0 on b: it belongs to another run"]


@pytest.mark.parametrize(
    ("changes", "certified", "reason"),
    [
        ({}, "127.90.0.1", ""),
        ({"target": ""}, "127.90.0.1", ""),
        ({"attempt": 3}, "127.90.0.1", ""),
        ({}, "127.90.0.3", "its certificate is for another host than its first frame names"),
        ({"source": "127.90.0.9"}, "127.90.0.9", "its certificate is for another host than its first frame names"),
        ({"source": ""}, "", "its certificate is for another host than its first frame names"),
        ({"run": "other"}, "127.90.0.1", "it belongs to another run"),
        ({"attempt": 1}, "127.90.0.1", "it belongs to attempt 1, and this is attempt 2"),
        ({"target": "ps:0"}, "127.90.0.1", "it is for a task of another host"),
    ],
)
def test_the_first_frame_decides(changes: dict[str, object], certified: str, reason: str) -> None:
    """A frame of the next attempt is that of a host that was told of it earlier."""
    known = network(history().happens(*HELD), "b")
    known.attempt = 2
    about = {"run": known.run, "attempt": 2, "source": "127.90.0.1", "target": "worker:0", **changes}
    sent = Frame(**about).encode()  # type: ignore[arg-type]
    assert read_length(sent[:2]) == len(sent) - 2
    assert why_refused(read_frame(sent[2:]), certified, known) == reason
