"""A supervisor without a world: a mailbox whose clock does not run, links made of bytes, and a sink that counts."""

from __future__ import annotations

import heapq
import itertools
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tflaunch.core import event_records
from tflaunch.core.actions import Action
from tflaunch.core.annotations import Annotation
from tflaunch.core.events import Event
from tflaunch.mailbox import Mail, Mailbox
from tflaunch.store.log_sink import Times
from tflaunch.transport.base import AgentGoneError, LinkError
from tflaunch_worker import wire
from tflaunch_worker.function import MOST_BYTES, OUTCOME

_MOST_WORK = 60.0  # seconds of this process, which other processes do not slow down; a healthy case needs 0.01
_HORIZON = 500.0  # simulated seconds after which a job is left to itself


class Finished(Exception):
    """No further event will happen."""


class StillMailbox:
    """Like `tflaunch.mailbox.Mailbox`; time advances only when no event is pending."""

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        self.idle: Callable[[], bool] = lambda: False
        self._lines = {line.fileno(): line for line in lines}
        self._now = 1000.0
        self._events: deque[Mail] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._rounds = 0

    take_in_order = Mailbox.take_in_order

    def now(self) -> float:
        return self._now

    def put(self, event: Mail) -> None:
        self._events.append(event)

    def call(self, function: Callable[[], None]) -> None:
        self._calls.append(function)

    def call_at(self, when: float, function: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), function))

    def watch(self, descriptor: int, call: Callable[[], None]) -> None:
        self._lines[descriptor].serve = call

    def watch_writable(self, descriptor: int, wanted: bool) -> None:
        """Do nothing: links always accept data."""

    def forget(self, descriptor: int) -> None:
        self._lines[descriptor].serve = None

    def take(self, until: float | None) -> Mail | None:
        """Return the next event; advance the simulation until there is one.

        Raises:
            Finished: no event will come, or time is over.
        """
        self._rounds += 1
        if self._now > 1000.0 + _HORIZON or self._rounds > 20_000:
            raise Finished
        while self._calls and not self._events:
            self._calls.popleft()()
        if not self._events and not self.idle():
            due = [when for when in (until, self._timers[0][0] if self._timers else None) if when is not None]
            if not due:
                raise Finished
            self._now = max(self._now, min(due))
            while self._timers and self._timers[0][0] <= self._now:
                heapq.heappop(self._timers)[2]()
        return self._events.popleft() if self._events else None


class Line:
    """A link whose other end sends given data. It is its own socket."""

    def __init__(self) -> None:
        self.socket: Any = self
        self.is_closed = False
        self.sent = 0
        self.has_begun = False
        self.serve: Callable[[], None] | None = None
        self.is_full = False
        self._received: deque[bytes] = deque()

    def arrive(self, data: bytes) -> None:
        """Receive bytes; empty bytes mean the end of the stream."""
        self._received.append(data)

    def setblocking(self, flag: bool) -> None:
        """Do nothing: no call blocks."""

    def settimeout(self, seconds: float) -> None:
        """Do nothing: no call blocks."""

    def fileno(self) -> int:
        return id(self)

    def send(self, data: bytes | memoryview) -> int:
        if self.is_full:
            raise BlockingIOError
        self.sent += len(data)
        return len(data)

    def sendall(self, data: bytes) -> None:
        self.sent += len(data)

    def recv(self, size: int) -> bytes:
        if not self._received:
            raise BlockingIOError
        data = self._received.popleft()
        if len(data) > size:
            self._received.appendleft(data[size:])
        return data[:size]

    def close(self) -> None:
        self.is_closed = True


class AgentConnector:
    """A connector to a host whose agent starts once, can be reached a few times, and is then gone."""

    def __init__(self, lines: list[Line], first: Line | None = None) -> None:
        self.lines = lines
        self._first = first

    def open(self) -> Line:
        if self._first is None:
            raise LinkError("there is no other agent")
        first, self._first = self._first, None
        return first

    def resume(self) -> Line:
        if not self.lines:
            raise AgentGoneError("it has ended")
        return self.lines.pop(0)

    def end(self) -> None:
        """Do nothing."""


class OutputWriter:
    def __init__(self) -> None:
        self.begun: set[tuple[str, int]] = set()
        self.open: set[tuple[str, int]] = set()
        self.size = 0
        self.is_slow = False

    def begin(self, task: str, attempt: int) -> None:
        self.begun.add((task, attempt))
        self.open.add((task, attempt))

    def kept(self, task: str, attempt: int) -> int | None:
        return None

    def write(self, task: str, attempt: int, data: bytes, times: Times, done: Callable[[], None]) -> None:
        assert (task, attempt) in self.begun
        assert times[0][0] == 0, "output without its times"
        self.size += len(data)
        if not self.is_slow:
            done()

    def lose(self, task: str, attempt: int, size: int) -> None:
        assert (task, attempt) in self.begun
        assert 0 < size < 2**60

    def end(self, task: str, attempt: int) -> None:
        assert (task, attempt) in self.begun
        self.open.discard((task, attempt))

    def abandon(self, task: str, attempt: int) -> None:
        """Expect no more output of an attempt."""
        self.open.discard((task, attempt))

    def leave_to_others(self) -> None:
        self.open.clear()

    @property
    def is_complete(self) -> bool:
        return not self.open

    def tail(self, task: str, lines: int) -> list[str]:
        return []

    def trouble(self) -> list[str]:
        return []


class FileStore:
    """Accepts the files that were asked for, and checks them."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, int], int] = {}

    def kept(self, source: str, attempt: int) -> int:
        return self._sizes.get((source, attempt), 0)

    def write(self, source: str, attempt: int, data: bytes, times: Times, done: Callable[[], None]) -> None:
        assert source.endswith(f"/{OUTCOME}"), "a file that was not asked for"
        self._sizes[(source, attempt)] = size = self.kept(source, attempt) + len(data)
        assert size <= MOST_BYTES, "a file that is too large"
        done()

    def lose(self, source: str, attempt: int, size: int) -> None:
        assert 0 < size < 2**60

    def end(self, source: str, attempt: int) -> None:
        assert source.endswith(f"/{OUTCOME}")


class Records:
    """A journal that reads back what it writes."""

    def __init__(self) -> None:
        self.count = 0

    def record(self, event: Event | Annotation, actions: list[Action], now: float) -> None:
        """Check that an event survives the journal."""
        self.count += 1
        record = {"kind": event_records.kind_of(type(event)), **event._asdict()}
        line = json.dumps(record, allow_nan=False)
        assert len(line) < 1_000_000, "a record of more than a megabyte"
        assert event_records.from_record(wire.parse(line)) == event, "an event does not survive the journal"


def check_sentence(sentence: str, longest: int = 100_000) -> None:
    """Check that a message can be shown on a terminal."""
    sentence.encode("utf-8")
    unprintable = {sign for sign in sentence if not (sign.isprintable() or sign == "\n")}
    assert not unprintable, f"{unprintable} in a message"
    assert len(sentence) <= longest, f"a message of {len(sentence)} characters"


@contextmanager
def little_work() -> Iterator[None]:
    """Check that what is done is little: not exponential in the input."""
    began = time.process_time()
    yield
    assert time.process_time() - began < _MOST_WORK, "it takes too long"
