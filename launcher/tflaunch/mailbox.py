"""The event queue: serialize descriptors, timers, signals and other threads' events into one order."""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import time
from collections import deque
from collections.abc import Callable

from tflaunch.core.events import Event


class Mailbox:
    """Returns events one at a time; waits without polling."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._events: deque[Event] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()  # tie-breaker: timers due at the same time run in order of creation
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self.watch(self._wake_reader, self._drain_wakes)

    def now(self) -> float:
        """Return the current time: seconds of the monotonic clock."""
        return time.monotonic()

    def put(self, event: Event) -> None:
        """Add an event. Safe in signal handlers and threads, because appending to a deque is atomic."""
        self._events.append(event)
        self._wake()

    @property
    def wake_descriptor(self) -> int:
        """The descriptor to pass to `signal.set_wakeup_fd`; a byte written to it wakes `take`.

        Python runs its handlers only between bytecodes, so a signal just before the wait would be noticed only after
        it. The interpreter itself writes the byte at once.
        """
        return self._wake_writer

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the thread that takes events, once no event is left; thread-safe."""
        self._calls.append(function)
        self._wake()

    def call_at(self, when: float, function: Callable[[], None]) -> None:
        """Call a function from `take` when the monotonic clock reaches ``when``."""
        heapq.heappush(self._timers, (when, next(self._numbers), function))

    def watch(self, descriptor: int, call: Callable[[], None]) -> None:
        """Call ``call`` whenever a descriptor is ready."""
        self._selector.register(descriptor, selectors.EVENT_READ, call)

    def watch_writable(self, descriptor: int, wanted: bool) -> None:
        """Start or stop calling the descriptor's callback also when it is writable."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        key = self._selector.get_key(descriptor)
        if key.events != events:
            self._selector.modify(descriptor, events, key.data)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        self._selector.unregister(descriptor)

    def take(self, until: float | None) -> Event | None:
        """Return the next event, waiting until the monotonic clock reaches ``until`` (None: indefinitely).

        Returns None on timeout, and also when only descriptors were served; callers recheck their conditions and
        call again.
        """
        while self._timers and self._timers[0][0] <= self.now():
            heapq.heappop(self._timers)[2]()
        while self._calls and not self._events:
            self._calls.popleft()()
        if not self._events and not self._calls:
            for key, _ in self._selector.select(self._patience(until)):
                if self._selector.get_map().get(key.fd) is key:  # otherwise an earlier callback has unregistered it
                    key.data()
        return self._events.popleft() if self._events else None

    def _patience(self, until: float | None) -> float | None:
        """Return the seconds until ``until`` or the first timer, None for no limit."""
        moments = [moment for moment in (until, self._timers[0][0] if self._timers else None) if moment is not None]
        return max(min(moments) - self.now(), 0) if moments else None

    def close(self) -> None:
        """Close the mailbox's own descriptors."""
        self._selector.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _wake(self) -> None:
        try:
            os.write(self._wake_writer, b"!")
        except BlockingIOError:
            pass  # the pipe is full of wake-ups already

    def _drain_wakes(self) -> None:
        os.read(self._wake_reader, 65536)
