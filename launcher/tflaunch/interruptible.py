"""Handle signals for a while, and wait so that a signal, even one just before, ends it."""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

_READ = 4096  # bytes, one per signal


def wait_readable(descriptors: Sequence[int], patience: float | None = None) -> list[int]:
    """Return the readable or closed descriptors; none after ``patience`` seconds.

    Python runs signal handlers only between bytecodes, so `select.select` alone would not notice a signal that arrives
    just before the system call. Here the interpreter also writes a byte to a pipe at once, which ends the system call.
    The handler then runs, and may raise an exception such as KeyboardInterrupt.
    """
    until = None if patience is None else time.monotonic() + patience
    with _signals() as (woken, pass_on):
        poll = select.poll()  # select() cannot wait for descriptors above 1023
        for descriptor in (*descriptors, *woken):
            poll.register(descriptor, select.POLLIN)
        while True:
            left = None if until is None else max(until - time.monotonic(), 0) * 1000
            events = poll.poll(left)
            ready = [descriptor for descriptor, _ in events if descriptor not in woken]
            if ready or not events:
                return ready
            pass_on()


@contextmanager
def handle_signals(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle signals in this way until the context is left, and as before from then on."""
    earlier = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in earlier.items():
            signal.signal(number, before)


@contextmanager
def _signals() -> Iterator[tuple[list[int], Callable[[], None]]]:
    """Yield a descriptor that each signal makes readable, and what empties it.

    That function passes the signals on to an earlier such descriptor, as asyncio has one. Other threads than the main
    one get no descriptor, because they run no signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield [], lambda: None
        return
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    earlier = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def pass_on() -> None:
        try:
            numbers = os.read(reader, _READ)
            if earlier >= 0:
                os.write(earlier, numbers)
        except OSError:
            pass  # no signal has arrived, or its earlier receiver is gone or has many unread ones

    try:
        yield [reader], pass_on
    finally:
        signal.set_wakeup_fd(earlier)
        pass_on()
        os.close(reader)
        os.close(writer)
