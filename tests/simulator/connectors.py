"""Connectors for simulated hosts, and the threads in which sessions use them.

A thread that waits is a function that raises `Wait`: it is called again later, and finds its progress
in its `Thread`.
"""

from __future__ import annotations

from collections.abc import Callable

from simulator.hosts import SimHost
from simulator.links import End
from simulator.world import World
from tflaunch.transport.base import AgentGoneError, LinkError

_RETRANSMISSIONS = (1.0, 3.0, 7.0, 15.0)  # seconds after the first try, as in TCP
_CLOSE = 1e-3  # seconds within which rounding may round a wait to zero
_LOOK_AGAIN = 0.05
_END_PATIENCE = 5.0  # boot.py
_LOCAL_PATIENCE = 10.0  # local.py
_ORPHANS_PATIENCE = 5.0  # orphans.py
_IN_QUEUE = ("no node has enough memory", "its image is pulled")
_PULLED = 5.0  # seconds


class Wait(BaseException):
    """Call again after this many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


class Thread:
    def __init__(self, began: float) -> None:
        self.began = began
        self.is_connected = False
        self.waits: dict[str, float] = {}  # since when it waits, by reason


class Aside:
    """The threads of one session."""

    def __init__(self, world: World, connector: SimConnector) -> None:
        self._world = world
        self._connector = connector
        self.is_dead = False
        self.is_last = False  # the run is over: the process ends with its threads, and its links with it

    def do(self, function: Callable[[], None]) -> None:
        thread = Thread(self._world.now)
        self._world.after(0.0005, lambda: self._run(function, thread))

    def _run(self, function: Callable[[], None], thread: Thread) -> None:
        if self.is_dead:
            return
        self._connector.thread = thread
        try:
            function()
        except Wait as wait:
            self._world.after(wait.seconds, lambda: self._run(function, thread))
            return
        if self.is_last:
            for wire in self._connector.host.live_wires():
                wire.supervisor.close()


class SimLink:
    def __init__(self, end: End) -> None:
        self._end = end

    @property
    def socket(self) -> End:
        return self._end

    def close(self) -> None:
        self._end.close()


class SimConnector:
    """A connector for a host over the network, like `features.ssh.connectors` and the worker's `boot`."""

    def __init__(self, host: SimHost, patience: float) -> None:
        self.host = host
        self.thread = Thread(0.0)
        self._world = host.world
        self._patience = patience
        self._tell: Callable[[str], None] = lambda _: None

    def tell_delay(self, tell: Callable[[str], None]) -> None:
        """Call ``tell`` with the reason why the host is not there yet."""
        self._tell = tell

    def open(self) -> SimLink:
        self._wait_in_queue()
        self._reach()
        if self.host.is_locked:
            self._wait(self._patience / 2, "an earlier agent of this run has not ended there")
        return SimLink(self.host.start_agent())

    def resume(self) -> SimLink:
        self._reach()
        agent = self.host.agent
        if agent is None:
            self._wait_for_orphans()
            raise AgentGoneError("")
        if agent.has_ended:
            self._wait(_END_PATIENCE, "the agent there is ending")
        return SimLink(self.host.connect())

    def end(self) -> None:
        """Nothing is left to wait for."""

    def _reach(self) -> None:
        thread, waited = self.thread, self._world.now - self.thread.began
        if not self.host.is_reachable:
            if waited >= self._patience - _CLOSE:
                raise LinkError("timed out")
            later = [moment for moment in _RETRANSMISSIONS if moment > waited + _CLOSE]
            raise Wait(min([self._patience, *later]) - waited)
        if not thread.is_connected:
            thread.is_connected = True
            raise Wait(self.host.delay * 8 + self._world.within(0.01, 0.1))
        if self.host.is_refusing:
            raise LinkError("connection refused")

    def _wait_in_queue(self) -> None:
        left = self.host.queued_until - self._world.now
        if left > 0:
            reason = _IN_QUEUE[left < _PULLED]
            if reason not in self.thread.waits:
                self._tell(reason)
            self._wait(self._patience, reason)

    def _wait_for_orphans(self) -> None:
        if self.host.sweep():
            self._wait(_ORPHANS_PATIENCE, "processes of its tasks do not die")

    def _wait(self, patience: float, reason: str) -> None:
        since = self.thread.waits.setdefault(reason, self._world.now)
        if self._world.now - since >= patience:
            raise LinkError(reason)
        raise Wait(_LOOK_AGAIN)


class SimLocalConnector(SimConnector):
    """The connector of this machine, like `transport.local`."""

    def open(self) -> SimLink:
        """Start an agent; while an earlier guard holds the lock, a new agent ends at once."""
        return SimLink(self.host.refused_end() if self.host.is_locked else self.host.start_agent())

    def resume(self) -> SimLink:
        """Find the agent again, or wait for the guard."""
        if self.host.agent is not None and not self.host.agent.has_ended:
            return SimLink(self.host.connect())
        if self.host.is_locked:
            self._wait(_LOCAL_PATIENCE, "its guard does not end")
        self._wait_for_orphans()
        raise AgentGoneError("")

    def end(self) -> None:
        """Wait for the guard, and for its orphans; the rest of the supervisor is blocked."""
        until = self._world.now + _LOCAL_PATIENCE
        while (self.host.is_locked or self.host.sweep()) and self._world.next_at <= until:
            self._world.step()
