"""Notices when a task listens on its port.

The kernel tells nobody that a port was opened, so this looks, and it is the only thing in tflaunch
that looks instead of waiting: every quarter of a second at first, then ever more rarely, and not at
all once all ports are open. One look is one question to the kernel, for all tasks together.

Standard library only, Python >= 3.8: this module runs on hosts.
"""

from __future__ import annotations

from tflaunch_worker.network import listeners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from tflaunch_worker.loop import Loop

FIRST_LOOK = 0.25
_GROWTH = 8  # a look at t is followed by one at t + t/8: opening times are known to about 12 %
_GIVE_UP = 3600.0  # TensorFlow itself waits no longer for a missing peer


class PortWatch:
    """Calls ``opened(task)`` once for each watched task whose port is listened on."""

    def __init__(self, loop: Loop, opened: Callable[[str], None]) -> None:
        self._loop = loop
        self._opened = opened
        self._waiting: dict[str, tuple[int, Callable[[], int] | None]] = {}
        self._since = 0.0
        self._is_scheduled = False
        self._looked_at = 0.0

    def add(self, task: str, port: int, session: Callable[[], int] | None = None) -> None:
        """Watch a port that was just given to a starting task.

        ``session`` returns the task's session, if somebody else may take the port and listen.
        """
        self._waiting[task] = port, session
        self._since = self._loop.now()
        self._schedule()

    def look_soon(self) -> None:
        """Some task has written something, as they do once the cluster has formed: look, unless we just did."""
        if self._waiting and self._loop.now() - self._looked_at >= FIRST_LOOK:
            self._look_now()

    def remove(self, task: str) -> None:
        """Stop watching; harmless when the port was open already."""
        self._waiting.pop(task, None)

    def _schedule(self) -> None:
        elapsed = self._loop.now() - self._since
        if self._waiting and not self._is_scheduled and elapsed < _GIVE_UP:
            self._is_scheduled = True
            delay = max(FIRST_LOOK, elapsed / _GROWTH)
            self._loop.at(self._loop.now() + delay, self._look)

    def _look(self) -> None:
        self._is_scheduled = False
        self._look_now()
        self._schedule()

    def _look_now(self) -> None:
        self._looked_at = self._loop.now()
        open_ports = listeners.ports() if self._waiting else set()
        for task, (port, session) in list(self._waiting.items()):
            if port in open_ports and (session is None or listeners.is_listening(port, session())):
                del self._waiting[task]
                self._opened(task)
