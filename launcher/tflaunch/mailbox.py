"""The event queue: descriptors, timers, signals and other threads in one order."""

import os
from collections import deque
from collections.abc import Callable

from tflaunch import feature_faults
from tflaunch.core.annotations import Annotation
from tflaunch.core.events import Event, HostLeaving, HostLost, Interrupted, LinkLost, Superseded, TaskExited
from tflaunch_worker.event_loop import Loop

Mail = Event | Annotation | Superseded
"""What a mailbox takes, in one order."""

_ENDS = (HostLeaving, HostLost, LinkLost, TaskExited)


class Mailbox(Loop):
    """A loop that also returns events and annotations, one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.excuse = feature_faults.excuse
        self._events: deque[Mail] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self.watch(self._wake_reader, self._drain_wakes)

    def put(self, event: Mail) -> None:
        """Add an event; safe in signal handlers and threads, as `deque.append` is atomic."""
        self._events.append(event)
        self._wake()

    @property
    def wake_descriptor(self) -> int:
        """The descriptor for `signal.set_wakeup_fd`; a byte written to it wakes `take`.

        Python runs its handlers only between bytecodes, so a signal just before the wait would be noticed only after
        it. The interpreter itself writes the byte at once.
        """
        return self._wake_writer

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the event thread when no event is left; thread-safe."""
        self._calls.append(function)
        self._wake()

    def take(self, until: float | None) -> Mail | None:
        """Return the next event; wait until the monotonic time ``until`` (None: forever).

        Returns None on timeout, and also when only descriptors were served; callers recheck their conditions and
        call again.
        """
        self.call_due()
        while self._calls and not self._events:
            self._do(self._calls.popleft())
        if not self._events and not self._calls:
            self.serve_ready(until)
        return self._events.popleft() if self._events else None

    def take_in_order(self, until: float | None, lag: float) -> tuple[float, list[Mail]]:
        """Return when the next mail came, and it, with a signal before failures around it.

        After a failure it is waited for, ``lag`` seconds at most: schedulers send it to tasks, agents and supervisor
        one by one, and it explains what they do. All of it counts as of that time: no success may settle before.
        """
        came = [mail] if (mail := self.take(until)) is not None else []
        now = self.now()
        if isinstance(mail, _ENDS) and getattr(mail, "code", None) != 0:  # the core lets a success settle
            while self.now() < now + lag and not isinstance(came[-1], Interrupted):
                if (mail := self.take(now + lag)) is not None:
                    came.append(mail)
        return now, sorted(came, key=lambda each: not isinstance(each, Interrupted))

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
