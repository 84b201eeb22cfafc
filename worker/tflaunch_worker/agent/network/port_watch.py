"""Detect when a task listens on its port.

The kernel sends no notification when a port is opened, so this polls; nothing else in tflaunch does. It polls every
quarter of a second at first, then less and less often, and not at all once all ports are open. One poll is one request
to the kernel, for all tasks together.
"""

from __future__ import annotations

from typing import Callable, Collection

from tflaunch_worker.agent.network import listening_sockets
from tflaunch_worker.event_loop import Loop

FIRST_LOOK = 0.25
_GROWTH = 8  # a poll at t is followed by one at t + t/8, so opening times are accurate to about 12 %
_GIVE_UP = 3600.0  # seconds; TensorFlow itself waits no longer for a missing peer


class PortWatch:
    """Watch that calls ``opened(task, port)`` once for each task that listens."""

    def __init__(
        self, loop: Loop, opened: Callable[[str, int], None], ours: Callable[[], Collection[int]] = frozenset
    ) -> None:
        """Watch nothing yet; ``ours``: inodes of the agent's own sockets on tasks' ports."""
        self._loop = loop
        self._ours = ours
        self._opened = opened
        self._waiting: dict[str, tuple[int, Callable[[], int] | None]] = {}
        self._since = 0.0
        self._is_scheduled = False
        self._looked_at = 0.0

    def add(self, task: str, port: int, process: Callable[[], int] | None = None) -> None:
        """Watch the port of a starting task, 0 if its program will choose one.

        ``process`` returns its pid; needed then, and if it is in a network of its own.
        """
        self._waiting[task] = port, process
        self._since = self._loop.now()
        self._schedule()

    def look_soon(self) -> None:
        """Poll now unless just done: tasks write output once the cluster has formed."""
        if self._waiting and self._loop.now() - self._looked_at >= FIRST_LOOK:
            self._look_now()

    def remove(self, task: str) -> None:
        """Stop watching a task; has no effect if its port is already open."""
        self._waiting.pop(task, None)

    def _schedule(self) -> None:
        elapsed = self._loop.now() - self._since
        if self._waiting and not self._is_scheduled and elapsed < _GIVE_UP:
            self._is_scheduled = True
            delay = max(FIRST_LOOK, elapsed / _GROWTH)
            self._loop.call_at(self._loop.now() + delay, self._look)

    def _look(self) -> None:
        self._is_scheduled = False
        self._look_now()
        self._schedule()

    def _look_now(self) -> None:
        self._looked_at = self._loop.now()
        open_ports = listening_sockets.ports(self._ours()) if self._waiting else set()
        for task, (wanted, process) in list(self._waiting.items()):
            if process is None:
                listening = open_ports
            elif wanted:
                listening = listening_sockets.ports_beside(process())
            else:
                listening = listening_sockets.ports_of(process())
            port = wanted or min(listening, default=0)
            if port in listening:
                del self._waiting[task]
                self._opened(task, port)
