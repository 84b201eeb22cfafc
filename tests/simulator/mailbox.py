"""The supervisor's mailbox: the real one, but its clock and its selector are the world's."""

from collections import deque
from collections.abc import Container

from simulator.descriptors import WorldSelector
from simulator.world import Violation, World
from tflaunch import feature_faults
from tflaunch.mailbox import Mail, Mailbox


class SupervisorDied(BaseException):
    """Kill -9: nothing of the supervisor runs after this."""


class SimMailbox(Mailbox):
    """Returns events one by one; while it waits, the world continues."""

    def __init__(self, world: World, ahead: float, liars: Container[str] = ()) -> None:
        """Prepare it; the supervisor's clock is ``ahead`` of the world's.

        ``liars``: the hosts that have sent what no agent sends, of which the supervisor may say so.
        """
        self.liars = liars
        self.excuse = lambda error: not isinstance(error, Violation) and feature_faults.excuse(error)
        self.selector = WorldSelector(world)
        self._selector = self.selector  # type: ignore[assignment]
        self._events = deque()
        self._calls = deque()
        self._timers = []
        self._world = world
        self.ahead = ahead

    def now(self) -> float:
        return self._world.now + self.ahead

    def put(self, event: Mail) -> None:
        reason = getattr(event, "reason", "")
        if "broke the protocol" in reason and getattr(event, "host", "") not in self.liars:
            raise Violation("protocol", f"{event}")
        super().put(event)

    def _wake(self) -> None:
        self.selector.wake()
