"""An agent's loop whose time the test advances."""

from collections.abc import Callable

from tflaunch_worker.event_loop import Timer


class StillLoop:
    """The timers of a loop; nothing else of it."""

    def __init__(self) -> None:
        self.time = 100.0
        self.timers: list[tuple[float, Timer]] = []

    def now(self) -> float:
        return self.time

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        self.timers.append((when, timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Make the calls that are due by then, but none that these schedule."""
        self.time += seconds
        for when, timer in [one for one in self.timers if one[0] <= self.time]:
            self.timers.remove((when, timer))
            if timer.call is not None:
                timer.call()

    def next(self) -> None:
        """Make the call that was scheduled first, at its time."""
        self.advance(max(self.timers[0][0] - self.time, 0.0))
