"""A cable with a delay between two networks of one machine: not every kernel can delay packets."""

import contextlib
import ctypes
import fcntl
import functools
import os
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from support.needs import need

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_TUN = Path("/dev/net/tun")
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_FRAME = 1 << 16


def in_network(namespace: str, work: Callable[[], T]) -> T:
    """Call a function in another network: what it opens stays there. It must not start a process."""
    result: Future[T] = Future()

    def enter() -> None:
        try:
            _enter(namespace)
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            result.set_exception(error)

    # A namespace belongs to a thread; this thread ends in it.
    threading.Thread(target=enter).start()
    return result.result()


def _enter(namespace: str) -> None:
    with open(namespace, "rb") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")


class SlowCable:
    """Two devices, each in a network; each forwards frames to the other with a delay."""

    def __init__(self, one: tuple[str, str], other: tuple[str, str], delay: float) -> None:
        """Create both ends, each given by the path of its namespace and the device's name.

        Args:
            one: an end.
            other: an end.
            delay: seconds each way.
        """
        need("tap")
        self._delay = delay
        self._ends = [in_network(namespace, functools.partial(_tap, name)) for namespace, name in (one, other)]
        self._stop, self._stopper = os.pipe()
        self._thread = threading.Thread(target=self._carry, name="cable", daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.close(self._stopper)
        self._thread.join()

    def _carry(self) -> None:
        opposite = dict(zip(self._ends, reversed(self._ends), strict=True))
        under_way: deque[tuple[float, int, bytes]] = deque()
        poll = select.epoll()
        for file in (*self._ends, self._stop):
            poll.register(file, select.EPOLLIN)
        while True:
            wait = max(under_way[0][0] - _now(), 0) if under_way else None
            ready = {file for file, _ in poll.poll(wait)}
            if self._stop in ready:
                break
            for file in ready:
                # A device that is down, or has a full queue, loses frames, as cables do.
                with contextlib.suppress(OSError):
                    under_way.append((_now() + self._delay, opposite[file], os.read(file, _FRAME)))
            while under_way and under_way[0][0] <= _now():
                _, file, frame = under_way.popleft()
                with contextlib.suppress(OSError):
                    os.write(file, frame)
        for file in (*self._ends, self._stop, poll.fileno()):
            os.close(file)


def _now() -> float:
    return time.monotonic()  # clock: the delay of a cable is a time


def _tap(name: str) -> int:
    file = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return file
