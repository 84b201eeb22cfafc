"""Handle signals for a while; a signal, even one just before, ends a wait."""

import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

_LONGEST_CALL = 1.0  # seconds


def wait_readable(descriptors: Sequence[int], patience: float | None = None) -> list[int]:
    """Return the readable or closed descriptors; none after ``patience`` seconds.

    Python runs signal handlers only between bytecodes: it does not notice a signal that arrives just before the system
    call (1 of 300 that were sent right after a line of output). So no call is a long one. The handler then runs, and
    may raise an exception such as KeyboardInterrupt.
    """
    until = None if patience is None else time.monotonic() + patience
    poll = select.poll()  # select() cannot wait for descriptors above 1023
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    while True:
        left = _LONGEST_CALL if until is None else min(max(until - time.monotonic(), 0), _LONGEST_CALL)
        events = poll.poll(left * 1000)
        if events or (until is not None and time.monotonic() >= until):
            return [descriptor for descriptor, _ in events]


@contextmanager
def handle_signals(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle signals in this way until the context is left, and then as before."""
    earlier = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in earlier.items():
            signal.signal(number, before)
