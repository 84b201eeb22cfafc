"""An agent's loop: the real one, called by the world whenever there is something to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulator import kernel
from simulator.descriptors import Idle, TurnSelector
from tflaunch_worker.event_loop import Loop

if TYPE_CHECKING:
    from simulator.hosts import SimHost

_WAKING = 0.0002  # seconds from an event to the loop's turn


class SimLoop(Loop):
    def __init__(self, host: SimHost, ended: Callable[[], None]) -> None:
        """Prepare it; ``ended`` is called once it was stopped."""
        self._selector = TurnSelector(host.world, self._wake)  # type: ignore[assignment]
        self._timers = []
        self._running = True
        self._host = host
        self._world = host.world
        self._ended = ended
        self._turn_number = 0
        self._turn_at = float("inf")
        self._is_dead = False
        self.frozen_until = 0.0

    def now(self) -> float:
        host = self._host
        return host.clock_ahead + self._world.now * host.clock_rate

    def kill(self) -> None:
        self._is_dead = True

    def turn(self) -> None:
        if self._is_dead:
            return
        self._turn_at = float("inf")
        if self._world.now < self.frozen_until:
            self._turn_in(self.frozen_until - self._world.now)
            return
        kernel.current.host = self._host
        try:
            self.run()
        except Idle as idle:
            if idle.seconds is not None:
                self._turn_in(idle.seconds / self._host.clock_rate + 1e-6)
        else:
            self._is_dead = True
            self._ended()

    def _wake(self) -> None:
        self._turn_in(_WAKING)

    def _turn_in(self, seconds: float) -> None:
        when = self._world.now + seconds
        if when >= self._turn_at or self._is_dead:
            return
        self._turn_at = when
        self._turn_number += 1
        self._world.at(when, self._turn_if_latest, self._turn_number)

    def _turn_if_latest(self, number: int) -> None:
        if number == self._turn_number:
            self.turn()
