"""A supervisor without a world: a mailbox whose time stands still, links that are bytes, output that is counted."""

from __future__ import annotations

import heapq
import itertools
import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tflaunch.agents.output import Times
from tflaunch.core import events
from tflaunch.core.actions import Action
from tflaunch.core.events import Event
from tflaunch.transport.base import AgentGone, LinkError
from tflaunch_worker import wire

_HORIZON = 500.0  # seconds that may pass before a job is left to itself


class Finished(Exception):
    """Nothing more will happen."""


class StillMailbox:
    """As `tflaunch.mailbox.Mailbox`; time passes only when nothing else can happen."""

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        """Prepare to serve links."""
        self.idle: Callable[[], bool] = lambda: False
        self._lines = {line.fileno(): line for line in lines}
        self._now = 1000.0
        self._events: deque[Event] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._rounds = 0

    def now(self) -> float:
        """Return the time."""
        return self._now

    def put(self, event: Event) -> None:
        """Add an event."""
        self._events.append(event)

    def call(self, function: Callable[[], None]) -> None:
        """Have a function called when no event is left."""
        self._calls.append(function)

    def call_at(self, when: float, function: Callable[[], None]) -> None:
        """Have a function called at a time."""
        heapq.heappush(self._timers, (when, next(self._numbers), function))

    def watch(self, descriptor: int, call: Callable[[], None]) -> None:
        """Have `idle` serve a link."""
        self._lines[descriptor].serve = call

    def watch_writable(self, descriptor: int, wanted: bool) -> None:
        """Links take everything."""

    def forget(self, descriptor: int) -> None:
        """Serve a link no longer."""
        self._lines[descriptor].serve = None

    def take(self, until: float | None) -> Event | None:
        """Return the next event; let the world go on until there is one.

        Raises:
            Finished: there will be none, or time is over.
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
    """A link whose other end says what it is told to say. Its own socket."""

    def __init__(self) -> None:
        self.socket: Any = self
        self.is_closed = False
        self.sent = 0
        self.has_begun = False
        self.serve: Callable[[], None] | None = None
        self.is_full = False
        self._received: deque[bytes] = deque()

    def arrive(self, data: bytes) -> None:
        """Have bytes received; empty ones are the end."""
        self._received.append(data)

    def setblocking(self, flag: bool) -> None:
        """Nothing waits here."""

    def settimeout(self, seconds: float) -> None:
        """Nothing waits here."""

    def fileno(self) -> int:
        """Return a number."""
        return id(self)

    def send(self, data: bytes | memoryview) -> int:
        """Take everything, unless it is full."""
        if self.is_full:
            raise BlockingIOError
        self.sent += len(data)
        return len(data)

    def sendall(self, data: bytes) -> None:
        """Take everything."""
        self.sent += len(data)

    def recv(self, size: int) -> bytes:
        """Return what has come."""
        if not self._received:
            raise BlockingIOError
        data = self._received.popleft()
        if len(data) > size:
            self._received.appendleft(data[size:])
        return data[:size]

    def close(self) -> None:
        """Hang up."""
        self.is_closed = True


class AgentConnector:
    """The way to a host whose agent can be reached some times, and has ended then."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines

    def open(self) -> Line:
        """Start no other agent."""
        raise LinkError("there is no other agent")

    def resume(self) -> Line:
        """Find the agent again."""
        if not self.lines:
            raise AgentGone("it has ended")
        return self.lines.pop(0)

    def end(self) -> None:
        """Nothing is left to wait for."""


class OutputWriter:
    """Takes output and checks what it is told."""

    def __init__(self) -> None:
        self.begun: set[tuple[str, int]] = set()
        self.open: set[tuple[str, int]] = set()
        self.size = 0
        self.is_slow = False

    def begin(self, task: str, attempt: int) -> None:
        """An attempt is about to start."""
        self.begun.add((task, attempt))
        self.open.add((task, attempt))

    def kept(self, task: str, attempt: int) -> int | None:
        """There was no earlier supervisor."""
        return None

    def write(self, task: str, attempt: int, data: bytes, times: Times, done: Callable[[], None]) -> None:
        """Take output."""
        assert (task, attempt) in self.begun
        assert times[0][0] == 0, "output without its times"
        self.size += len(data)
        if not self.is_slow:
            done()

    def lose(self, task: str, attempt: int, size: int) -> None:
        """Take that output is missing."""
        assert (task, attempt) in self.begun
        assert 0 < size < 2**60

    def end(self, task: str, attempt: int) -> None:
        """An attempt has written its last."""
        assert (task, attempt) in self.begun
        self.open.discard((task, attempt))

    def abandon(self, task: str) -> None:
        """Nothing more is expected of a task."""
        self.open = {about for about in self.open if about[0] != task}

    def leave_to_others(self) -> None:
        """Nothing more is expected of any."""
        self.open.clear()

    @property
    def is_complete(self) -> bool:
        """Whether nothing is expected."""
        return not self.open

    def tail(self, task: str, lines: int) -> list[str]:
        """Nothing is kept."""
        return []

    def trouble(self) -> list[str]:
        """There is room for everything."""
        return []


class Records:
    """A journal that reads back what it writes."""

    def __init__(self) -> None:
        self.count = 0

    def record(self, event: Event, actions: list[Action], now: float) -> None:
        """Check that an event survives the journal."""
        self.count += 1
        record = {"kind": events.kind_of(type(event)), **event._asdict()}
        line = json.dumps(record, allow_nan=False)
        assert len(line) < 1_000_000, "a record of more than a megabyte"
        assert events.from_record(wire.parse(line)) == event, "an event does not survive the journal"


def check_sentence(sentence: str, longest: int = 100_000) -> None:
    """Check that a message can be shown on a terminal."""
    sentence.encode("utf-8")
    unprintable = {sign for sign in sentence if not (sign.isprintable() or sign == "\n")}
    assert not unprintable, f"{unprintable} in a message"
    assert len(sentence) <= longest, f"a message of {len(sentence)} characters"
