"""Which host's network is slow: from measurements as agents send them, and from single connections."""

from __future__ import annotations

import socket

import pytest

from tflaunch.core.vitals import SendQueue
from tflaunch.explain.slow_links import LinkQueues, SlowLink
from tflaunch_worker.agent.collective_watch import QueueWatch
from tflaunch_worker.inspect.tcp_info import Connection, TcpInfo

pytestmark = pytest.mark.unit

HOSTS = {"10.0.0.1": "h1", "10.0.0.2": "h2", "10.0.0.3": "h3", "10.0.0.4": "h4"}
RING = {"h1": "10.0.0.2", "h2": "10.0.0.3", "h3": "10.0.0.4", "h4": "10.0.0.1"}


class Ring:
    """Hosts in a ring; ``shares``: how much of the time each one's data waits to be sent to the next one."""

    def __init__(self, **shares: float) -> None:
        self.queues = LinkQueues()
        self.shares = shares
        self.now = 0.0

    def run(self, seconds: int) -> SlowLink | None:
        """Let the agents tell every second; return what is known then."""
        for _ in range(seconds):
            self.now += 1
            for host, share in self.shares.items():
                queue = SendQueue("10.0.0.9", RING[host], share)
                self.queues.add(self.now, host, [queue] if share else [], HOSTS)
        return self.queues.slow(set(self.shares))


@pytest.mark.parametrize(
    ("shares", "found"),
    [
        ({"h1": 0.5, "h2": 0.6, "h3": 0.02, "h4": 0.03}, ("h2", 0.6, 0.03, "h2", "h3")),  # both ways
        ({"h1": 0.03, "h2": 0.6, "h3": 0.02, "h4": 0.0}, ("h2", 0.6, 0.02, "h2", "h3")),  # one way: who sends
        ({"h1": 0.78, "h2": 0.3, "h3": 0.0, "h4": 0.0}, ("h2", 0.78, 0.0, "h1", "h2")),  # unequal
        ({"h1": 0.6, "h2": 0.6, "h3": 0.5, "h4": 0.6}, None),  # all links are equally busy
        ({"h1": 0.6, "h2": 0.05, "h3": 0.5, "h4": 0.05}, None),  # two that have no host in common
        ({"h1": 0.09, "h2": 0.09, "h3": 0.0, "h4": 0.0}, None),  # too little
    ],
)
def test_the_host_that_all_slow_links_have_in_common(
    shares: dict[str, float], found: tuple[object, ...] | None
) -> None:
    """By how much longer data waits there than anywhere else."""
    known = Ring(**shares).run(30)
    assert (
        known and (known.host, round(known.share, 2), round(known.others, 2), known.sender, known.receiver)
    ) == found


def test_it_is_found_within_seconds_and_forgotten_when_it_is_over() -> None:
    """A short burst is not enough."""
    ring = Ring(h1=0.02, h2=0.02, h3=0.02)
    assert ring.run(60) is None
    ring.shares = {"h1": 0.6, "h2": 0.6, "h3": 0.02}
    assert ring.run(2) is None
    assert ring.run(5) is not None
    assert ring.queues.is_still_slow("h2", {"h1", "h2", "h3"})
    ring.shares = {"h1": 0.02, "h2": 0.02, "h3": 0.02}
    ring.run(60)
    assert ring.queues.slow({"h1", "h2", "h3"}) is None
    assert not ring.queues.is_still_slow("h2", {"h1", "h2", "h3"})


def test_two_hosts_and_hosts_that_have_not_told_are_not_judged() -> None:
    """Either end of a single link may be the slow one."""
    ring = Ring(h1=0.6, h2=0.6)
    assert ring.run(60) is None
    assert ring.queues.slow({"h1", "h2", "h3"}) is None


def test_data_waits_for_the_network_only_if_its_receiver_takes_it() -> None:
    """The kernel's time in which the receiver's window was full grows otherwise."""
    watch = QueueWatch()
    for queued, held in ((1000, 0), (1000, 50), (0, 50), (1000, 50)):
        watch.note(TcpInfo(queued=queued, held=held))
    assert watch.take_share() == 0.5
    assert watch.take_share() == 0.0


def test_addresses_of_connections() -> None:
    """As the agents tell the addresses of their hosts."""
    ends = b"\0\1\0\2"
    old = ends + socket.inet_aton("10.0.0.1") + bytes(12) + socket.inet_aton("10.0.0.2") + bytes(12)
    mapped = ends + b"".join(bytes(10) + b"\xff\xff" + socket.inet_aton(f"10.0.0.{end}") for end in (1, 2))
    new = ends + socket.inet_pton(socket.AF_INET6, "fd00::1") + socket.inet_pton(socket.AF_INET6, "fd00::2")
    assert Connection(socket.AF_INET, old).addresses() == ("10.0.0.1", "10.0.0.2")
    assert Connection(socket.AF_INET6, mapped).addresses() == ("10.0.0.1", "10.0.0.2")
    assert Connection(socket.AF_INET6, new).addresses() == ("fd00::1", "fd00::2")
