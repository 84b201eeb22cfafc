"""Measure for how long other tasks wait for each task of this host and for its data, from its TCP connections.

In a collective of TensorFlow (gRPC), a task asks its neighbour for data and gets it when the neighbour has arrived
there, too. A task that has received a request some time ago, and has sent nothing since, keeps others waiting. The
kernel tells when data was last sent and received, so a sample now and then is enough: its rate follows from its cost.
Data that waits to be sent, although the receiver takes it, waits for the network between them.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

import time

from tflaunch_worker.inspect import tcp_info

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tflaunch_worker.event_loop import Loop, Timer
    from tflaunch_worker.inspect.tcp_info import Connection, TcpInfo

_SHORTEST, _LONGEST = 0.05, 1.0  # seconds between two samples
_SHARE = 0.002  # of a CPU, which samples may cost
_SHARE_OF_LISTS = 0.001
_BETWEEN_LISTS = 5.0  # seconds after which connections are listed again; that costs more on a busy machine
_LEAST_WAIT = 8  # milliseconds: two ticks of the kernel
_LONGEST_WAIT = 60_000  # milliseconds; requests that wait longer are not those of a collective
_LEAST_REQUEST = 150  # bytes received
_ANSWERED = 0.27  # bytes sent per byte received: control messages have 0.39, requests for data at least 0.6
_MOST_WAITS = 100  # kept until they are taken
_LEAST_QUEUED = 0.02  # of the samples, for a link to be told
_MOST_LINKS = 16  # told of a task at a time


class WaitCounts:
    """How often a task was seen, how often others waited for it then, and for how many milliseconds each time."""

    def __init__(self) -> None:
        self.samples = 0
        self.pending = 0
        self.waits: list[int] = []
        self._age: int | None = None

    def note(self, age: int | None) -> None:
        """Add a sample: the age in milliseconds of the oldest request that waits for an answer, None for none."""
        self.samples += 1
        if self._age is not None and (age is None or age < self._age) and len(self.waits) < _MOST_WAITS:
            self.waits.append(self._age)
        self._age = age
        if age is not None:
            self.pending += 1

    def take_waits(self) -> list[int]:
        """Return the waits that have ended since the previous call."""
        waits, self.waits = self.waits, []
        return waits


class RequestWatch:
    """Tells whether a connection has a request that waits for its answer."""

    def __init__(self) -> None:
        self._sent = 0
        self._received = -1

    def age(self, now: TcpInfo) -> int | None:
        """Return the age in milliseconds of the request that waits, None if none does."""
        if self._received < 0:
            self._settle(now)
        quiet = now.received_ago
        if quiet < _LEAST_WAIT or quiet > _LONGEST_WAIT:
            return None
        if now.sent_ago - quiet >= _LEAST_WAIT:
            return quiet
        if quiet - now.sent_ago >= _LEAST_WAIT or not self._lacks_answer(now):
            if now.sent_ago >= _LEAST_WAIT:
                self._settle(now)
            return None
        return quiet

    def _lacks_answer(self, now: TcpInfo) -> bool:
        """Return whether too little was sent for what was received: an answer and a request came in the same tick."""
        received = now.received - self._received
        return received >= _LEAST_REQUEST and now.sent - self._sent < _ANSWERED * received

    def _settle(self, now: TcpInfo) -> None:
        self._sent, self._received = now.sent, now.received


class QueueWatch:
    """Counts how often data of a connection waited to be sent, although the receiver took what had been sent."""

    def __init__(self) -> None:
        self._samples = 0
        self._queued = 0
        self._held = 0

    def note(self, now: TcpInfo) -> None:
        """Add a sample."""
        self._samples += 1
        if now.queued and now.held == self._held:
            self._queued += 1
        self._held = now.held

    def take_share(self) -> float:
        """Return in which share of the samples since the previous call data waited."""
        share = self._queued / self._samples if self._samples else 0.0
        self._samples = self._queued = 0
        return share


class CollectiveWatch:
    """Samples the connections of tasks' ports."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._ports: dict[str, int] = {}
        self._known: dict[str, WaitCounts] = {}
        self._connections: dict[str, list[tuple[Connection, RequestWatch, QueueWatch]]] = {}
        self._last_info: dict[str, list[TcpInfo]] = {}
        self._reader: tcp_info.TcpReader | None = None
        self._list_at = float("-inf")
        self._timer: Timer | None = None
        self._cost = 0.0

    def add(self, task: str, port: int) -> None:
        """Watch a task that takes part in collectives."""
        self._ports[task] = port
        self._known[task] = WaitCounts()
        self._list_at = float("-inf")
        if self._timer is None:
            self._schedule(_LONGEST)

    def remove(self, task: str) -> None:
        """Stop watching a task."""
        for known in (self._ports, self._known, self._connections, self._last_info):
            known.pop(task, None)

    def known(self, task: str) -> WaitCounts | None:
        """Return what is known about a task, None if it is not watched."""
        return self._known.get(task)

    def links(self, task: str) -> tuple[int, int, int] | None:
        """Return the longest round trip (µs) of a task's connections, and their segments, retransmitted and all."""
        infos = self._last_info.get(task)
        if not infos:
            return None
        retransmitted, segments = sum(info.retransmitted for info in infos), sum(info.segments for info in infos)
        return max(info.rtt for info in infos), retransmitted, segments

    def take_queues(self, task: str) -> list[tuple[str, str, float]]:
        """Return the connections to other hosts on which a task's data waited to be sent since the previous call.

        Each with this host's address, the other one's, and in which share of the samples; the largest first.
        """
        found = [(queue.take_share(), *each.addresses()) for each, _, queue in self._connections.get(task, ())]
        found = sorted((each for each in found if each[0] >= _LEAST_QUEUED and each[1] != each[2]), reverse=True)
        return [(local, peer, round(share, 3)) for share, local, peer in found[:_MOST_LINKS]]

    def _schedule(self, seconds: float) -> None:
        self._timer = self._loop.call_at(self._loop.now() + seconds, self._sample)

    def _sample(self) -> None:
        self._timer = None
        if not self._ports:
            return
        began = time.thread_time()
        try:
            if self._loop.now() >= self._list_at:
                self._list()
                self._list_at = self._loop.now() + max(_BETWEEN_LISTS, (time.thread_time() - began) / _SHARE_OF_LISTS)
                began = time.thread_time()
            for task in self._ports:
                self._look_at(task)
        except OSError:
            self._ports.clear()  # the kernel does not allow it
            return
        self._cost += (time.thread_time() - began - self._cost) / 8
        self._schedule(min(max(self._cost / _SHARE, _SHORTEST), _LONGEST))

    def _list(self) -> None:
        if self._reader is None:
            self._reader = tcp_info.TcpReader()
        found = tcp_info.connections(set(self._ports.values()))
        for task, port in self._ports.items():
            known = {each[0]: each for each in self._connections.get(task, ())}
            self._connections[task] = [known.get(each) or (each, RequestWatch(), QueueWatch()) for each in found[port]]

    def _look_at(self, task: str) -> None:
        assert self._reader is not None
        age, infos, is_gone = None, [], False
        for connection, watch, queue in self._connections.get(task, ()):
            info = self._reader.read(connection)
            if info is None:
                is_gone = True
                continue
            infos.append(info)
            queue.note(info)
            waits = watch.age(info)
            age = waits if age is None else max(age, waits or 0)
        if is_gone:
            self._list_at = float("-inf")
        self._last_info[task] = infos
        if infos:
            self._known[task].note(age)
