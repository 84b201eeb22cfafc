"""Find the host whose network slows a synchronous training. Explains only.

Pure: measurements of agents in, a finding out. In a ring of tasks, each connection carries the same amount of data. If
data waits to be sent to or from one host much longer than between all others, the network of that host is slow. From
three hosts on it can be told which one that is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from tflaunch.core.vitals import SendQueue

_LEAST_SHARE = 0.10  # of the time that data waits to be sent, from which a link is slow
_TIMES = 3.0  # as long as between all other hosts
_WINDOWS = (6.0, 12.0, 25.0, 50.0)  # seconds
_STILL = 25.0  # seconds in which a slow link must have been fast on the whole to count as fast again
_FEWEST_HOSTS = 3


class SlowLink(NamedTuple):
    """A host with a slow network.

    ``share``: how much of the time data waits to be sent, at most; ``others``: the same between all other hosts;
    ``sender`` and ``receiver``: the hosts between which it waits longest.
    """

    host: str
    share: float
    others: float
    sender: str
    receiver: str


class LinkQueues:
    """For how long data waited to be sent from each host to each other one, recently."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._told: dict[str, deque[tuple[float, float, Mapping[str, float]]]] = {}
        self._queued_at: dict[str, float] = {}

    def add(self, at: float, host: str, queues: list[SendQueue], hosts: Mapping[str, str]) -> None:
        """Add what the tasks of a host have measured until ``at``, in seconds; ``hosts`` are those with an address."""
        then, self._last[host] = self._last.get(host, at), at
        if at <= then:
            return
        shares: dict[str, float] = {}
        for queue in queues:
            receiver = hosts.get(queue.destination, host)
            if receiver != host:
                shares[receiver] = max(queue.share, shares.get(receiver, 0.0))
        if shares:
            self._queued_at[host] = at
        self._told.setdefault(host, deque()).append((at, at - then, shares))
        while self._told[host][0][0] < at - _WINDOWS[-1]:
            self._told[host].popleft()

    def slow(self, hosts: set[str]) -> SlowLink | None:
        """Return the one of these hosts with a slow network, None if there is none for certain."""
        if len(hosts) < _FEWEST_HOSTS or not hosts <= self._last.keys():
            return None
        for seconds in _WINDOWS:
            found = self._slow_for(hosts, seconds)
            if found is not None:
                return found
        return None

    def is_still_slow(self, host: str, hosts: set[str]) -> bool:
        """Return whether the network of a host is still the slow one, by about the last half minute."""
        found = _suspects(self._shares(hosts & self._last.keys(), _STILL), hosts, _LEAST_SHARE / 2)
        return any(each.host == host for each in found)

    def _slow_for(self, hosts: set[str], seconds: float) -> SlowLink | None:
        """Return the host whose network was slow for this long: in each half of the time."""
        begins = [self._told[host][0][0] - self._told[host][0][1] for host in hosts if self._told.get(host)]
        if len(begins) < len(hosts) or max(self._last[host] for host in hosts) - max(begins) < seconds:
            return None  # not known for so long
        halves = [_suspects(self._shares(hosts, seconds / 2, back), hosts, _LEAST_SHARE) for back in (0.0, seconds / 2)]
        for found in _suspects(self._shares(hosts, seconds), hosts, _LEAST_SHARE):
            if all(any(each.host == found.host for each in half) for half in halves):
                return found
        return None

    def _shares(self, hosts: set[str], seconds: float, back: float = 0.0) -> dict[tuple[str, str], float]:
        """Return how much of these seconds data waited, by sender and receiver; they ended ``back`` seconds ago."""
        found: dict[tuple[str, str], float] = {}
        until = max((self._last[host] for host in hosts), default=0.0) - back
        for sender in hosts & self._queued_at.keys():
            if self._queued_at[sender] <= until - seconds:
                continue  # with many hosts, most have nothing to tell
            told = [each for each in self._told[sender] if until - seconds < each[0] <= until]
            total = sum(lasted for _, lasted, _ in told)
            for _, lasted, shares in told:
                for receiver, share in shares.items():
                    found[sender, receiver] = found.get((sender, receiver), 0.0) + share * lasted / total
        return found


def _suspects(shares: Mapping[tuple[str, str], float], hosts: set[str], least: float) -> list[SlowLink]:
    """Return the hosts that all slow links have in common, the likeliest first: of two, the one that sends."""
    found: list[SlowLink] = []
    for host in sorted(hosts):
        own = [(share, link) for link, share in shares.items() if host in link]
        others = max((share for link, share in shares.items() if host not in link), default=0.0)
        share, (sender, receiver) = max(own, default=(0.0, ("", "")))
        if share >= least and share >= _TIMES * others:
            found.append(SlowLink(host, share, others, sender, receiver))
    return sorted(found, key=lambda each: (max(each.others, least / 2), each.host != each.sender))
