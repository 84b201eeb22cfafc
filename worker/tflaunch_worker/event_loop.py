"""Event loop of agent and supervisor: descriptors, timers; one thread, no polling."""

from __future__ import annotations

import heapq
import itertools
import selectors
import time
from typing import Callable

_NUMBERS = itertools.count()  # timers that are due at the same time are called in the order of their creation


class Timer:
    """A call that is made when it is due, unless it is cancelled."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Prevent the call; has no effect after it was made."""
        self.call = None


class Loop:
    """Calls back when a descriptor is ready or a timer is due."""

    def __init__(self) -> None:
        self.excuse: Callable[[Exception], bool] = lambda _: False  # whether to go on after a callback's exception
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._running = True

    def now(self) -> float:
        """Return the current time in seconds of the monotonic clock."""
        return time.monotonic()

    def watch(self, descriptor: int, call: Callable[[], None], urgent: bool = False) -> None:
        """Call ``call`` whenever ``descriptor`` is readable.

        Of several ready descriptors, urgent ones are served first, in the order in which they became ready: epoll keeps
        that order, so exits are seen in the order in which they happened.
        """
        self._selector.register(descriptor, selectors.EVENT_READ, (urgent, call))

    def watch_writable(self, descriptor: int, wanted: bool) -> None:
        """Set whether the descriptor's callback is also called when it is writable."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        key = self._selector.get_key(descriptor)
        if key.events != events:
            self._selector.modify(descriptor, events, key.data)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor; has no effect if it was not watched."""
        try:
            self._selector.unregister(descriptor)
        except KeyError:
            pass

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Call ``call`` once at ``when``, in seconds of the monotonic clock."""
        timer = Timer(call)
        heapq.heappush(self._timers, (when, next(_NUMBERS), timer))
        return timer

    def stop(self) -> None:
        """Make `run` return after the current round."""
        self._running = False

    def run(self) -> None:
        """Serve descriptors and timers until `stop`."""
        while self._running:
            self.serve_ready(None)
            self.call_due()

    def serve_ready(self, until: float | None) -> None:
        """Wait for descriptors, to the first timer or ``until``; call back the ready ones."""
        ready = self._selector.select(self._patience(until))
        if len(ready) > 1:
            ready.sort(key=lambda item: not item[0].data[0])  # the sort is stable, so each class keeps its order
        for key, _ in ready:
            if self._selector.get_map().get(key.fd) is key:  # otherwise an earlier callback closed it
                self._do(key.data[1])

    def _do(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            if not self.excuse(error):
                raise

    def _patience(self, until: float | None) -> float | None:
        timers = self._timers
        while timers and timers[0][2].call is None:
            heapq.heappop(timers)
        if timers and (until is None or timers[0][0] < until):
            until = timers[0][0]
        return None if until is None else max(until - self.now(), 0)

    def call_due(self) -> None:
        """Make the calls of all timers that are due."""
        now = self.now()
        while self._timers and self._timers[0][0] <= now:
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                self._do(call)
