"""Measure for how long other tasks wait for each task of this host, from its TCP connections.

In a collective of TensorFlow (gRPC), a task asks its neighbour for data and gets it when the neighbour has arrived
there, too. A task that has received a request some time ago, and has sent nothing since, keeps others waiting. The
kernel tells when data was last sent and received, so a sample now and then is enough: its rate follows from its cost.

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


class CollectiveWatch:
    """Samples the connections of tasks' ports."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._ports: dict[str, int] = {}
        self._known: dict[str, WaitCounts] = {}
        self._connections: dict[str, list[tuple[Connection, RequestWatch]]] = {}
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

    def links(self, task: str) -> tuple[int, int] | None:
        """Return the longest round trip (µs) and the retransmitted segments of a task's connections."""
        infos = self._last_info.get(task)
        if not infos:
            return None
        return max(info.rtt for info in infos), sum(info.retransmitted for info in infos)

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
            watches = dict(self._connections.get(task, ()))
            self._connections[task] = [(each, watches.get(each) or RequestWatch()) for each in found[port]]

    def _look_at(self, task: str) -> None:
        assert self._reader is not None
        age, infos, is_gone = None, [], False
        for connection, watch in self._connections.get(task, ()):
            info = self._reader.read(connection)
            if info is None:
                is_gone = True
                continue
            infos.append(info)
            waits = watch.age(info)
            age = waits if age is None else max(age, waits or 0)
        if is_gone:
            self._list_at = float("-inf")
        self._last_info[task] = infos
        if infos:
            self._known[task].note(age)
