"""A signal ends a wait for descriptors, whenever it arrives."""

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from support.processes import wait_until_waiting
from support.waiting import PATIENCE
from tflaunch.interruptible import wait_readable


class Stopped(Exception):
    """What a handler raises, as Python's own does for Ctrl-C."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


@pytest.fixture
def on_signal():
    """A function that installs a handler of SIGUSR1."""
    earlier = signal.getsignal(signal.SIGUSR1)

    def install(handler):
        signal.signal(signal.SIGUSR1, handler)

    yield install
    signal.signal(signal.SIGUSR1, earlier)


def signal_without_interrupting() -> None:
    """Send this process a signal that does not interrupt a system call of the main thread.

    The kernel delivers it to this thread, and only the main thread runs handlers. For a main thread in `poll`, this is
    the same as a signal that arrives after Python's last look at signals and before the system call.
    """
    thread = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1))
    thread.start()
    thread.join()


def while_waiting(action: Callable[[], None]) -> threading.Thread:
    """Do something in another thread once this one waits."""
    main = threading.get_native_id()

    def act() -> None:
        wait_until_waiting(main, "poll")
        action()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_a_signal_that_does_not_interrupt_the_system_call_ends_the_wait(pipe, on_signal):
    """`select.select` alone would wait until there is something to read."""

    def stop(number, frame):
        raise Stopped

    on_signal(stop)
    sender = while_waiting(signal_without_interrupting)
    with pytest.raises(Stopped):
        wait_readable([pipe[0]], PATIENCE)
    sender.join()


def test_a_handler_that_returns_lets_the_wait_go_on(pipe, on_signal):
    """Until a descriptor is readable, which a handler may have caused."""
    seen = []
    noted = threading.Event()

    def note(number, frame):
        seen.append(number)
        noted.set()
        if len(seen) == 2:
            os.write(pipe[1], b"x")

    def twice() -> None:
        signal_without_interrupting()
        noted.wait()
        signal_without_interrupting()

    on_signal(note)
    sender = while_waiting(twice)
    assert wait_readable([pipe[0]], PATIENCE) == [pipe[0]]
    assert seen == [signal.SIGUSR1] * 2
    sender.join()


def test_patience_ends_it_and_so_does_the_last_writer(pipe: tuple[int, int]) -> None:
    thread = threading.Thread(target=lambda: answers.append(wait_readable([pipe[0]], 0.01)))
    answers = [wait_readable([pipe[0]], 0)]
    thread.start()
    thread.join()
    assert answers == [[], []]
    reader, writer = os.pipe()
    os.close(writer)
    assert wait_readable([pipe[0], reader], PATIENCE) == [reader]
    os.close(reader)
