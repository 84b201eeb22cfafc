"""Links: two ends of a byte stream with delay, bounded buffers, cuts in one or both directions, and resets."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from simulator.descriptors import File
from simulator.world import World

TO_AGENT, TO_SUPERVISOR = 0, 1


class Speed(NamedTuple):
    """How long bytes are in transit: minimum seconds, seconds of random jitter, bytes per second."""

    delay: float
    jitter: float
    rate: float


class End(File):
    """One end, with the part of a socket's interface that session and client use."""

    def __init__(self, wire: Wire, direction: int) -> None:
        super().__init__(wire.world)
        self.wire = wire
        self.under_way = 0  # bytes sent from here that were not read by the other end
        self.is_reset = False
        self.is_amid = False  # whether a part of what was sent last did not fit into the buffer
        self._direction = direction
        self._received: deque[bytes] = deque()
        self._has_ended = False

    @property
    def is_readable(self) -> bool:
        return bool(self._received) or self._has_ended or self.is_reset

    @property
    def is_writable(self) -> bool:
        return self.under_way < self.wire.capacity or self.is_reset

    def setblocking(self, flag: bool) -> None:
        """Ignored: all reads and writes return at once here, `sendall` too."""

    def settimeout(self, seconds: float) -> None:
        """Ignored: nothing blocks here."""

    def send(self, data: bytes | bytearray) -> int:
        if self.is_closed:
            raise OSError(errno.EBADF, "closed")
        if self.is_reset:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        room = self.wire.capacity - self.under_way
        if room <= 0:
            raise BlockingIOError
        part = bytes(data[:room])
        self.is_amid = len(part) < len(data)
        self.under_way += len(part)
        self.wire.carry(self._direction, part)
        return len(part)

    def sendall(self, data: bytes) -> None:
        self.under_way += len(data)
        self.wire.carry(self._direction, data)

    def recv(self, size: int) -> bytes:
        if self._received:
            data = self._received.popleft()
            if len(data) > size:
                self._received.appendleft(data[size:])
                data = data[:size]
            self.wire.was_read(self._direction, len(data))
            return data
        if self.is_reset:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if self._has_ended:
            return b""
        raise BlockingIOError

    def arrive(self, data: bytes | None) -> None:
        if self.is_closed:
            return
        if data is None:
            self._has_ended = True
        else:
            self._received.append(data)
        self.changed()

    def reset(self) -> None:
        if not self.is_closed:
            self.is_reset = True
            self.changed()

    def close(self) -> None:
        if not self.is_closed:
            super().close()
            self.wire.hung_up(self._direction)


class Wire:
    """A stream between the supervisor and an agent."""

    def __init__(
        self, world: World, speed: Callable[[], Speed], capacity: int, guard_ends: Callable[[Callable[[], None]], None]
    ) -> None:
        """Create both ends.

        Args:
            world: the world.
            speed: the current speed.
            capacity: bytes that may be in transit in each direction.
            guard_ends: calls back when the agent's guard has ended, or the wait for its end is over: only
                then does the supervisor see the end of the stream.
        """
        self.world = world
        self.opened_at = world.now
        self.capacity = capacity
        self.first = b""  # what the supervisor has sent first: its greeting
        self.supervisor = End(self, TO_AGENT)
        self.agent = End(self, TO_SUPERVISOR)
        self._speed = speed
        self._guard_ends = guard_ends
        self._ends = (self.agent, self.supervisor)  # by the direction that leads there
        self._is_cut = [False, False]
        self._is_dead = False
        self._held: tuple[deque[bytes | None], deque[bytes | None]] = (deque(), deque())
        self._last = [0.0, 0.0]

    def carry(self, direction: int, data: bytes | None) -> None:
        """Deliver bytes to the other end, in order."""
        if data is not None and direction == TO_AGENT and not self.first:
            self.first = data
        speed = self._speed()
        size = 0 if data is None else len(data)
        when = self.world.now + speed.delay + speed.jitter * self.world.random.random() + size / speed.rate
        when = max(when, self._last[direction])
        self._last[direction] = when
        self.world.at(when, self._deliver, direction, data)

    def _deliver(self, direction: int, data: bytes | None) -> None:
        if self._is_cut[direction] or self._held[direction]:
            self._held[direction].append(data)
        elif not self._is_dead:
            self._ends[direction].arrive(data)

    def was_read(self, direction: int, size: int) -> None:
        """The sending end of this direction has read that many bytes of the other direction."""
        sender = self._ends[direction]
        sender.under_way -= size
        sender.changed()

    def hung_up(self, direction: int) -> None:
        """The sending end of this direction has closed."""
        if direction == TO_SUPERVISOR:
            self._guard_ends(lambda: self.carry(direction, None))
        else:
            self.carry(direction, None)

    def cut(self, *directions: int) -> None:
        """Let nothing through until it is healed, without notification."""
        for direction in directions or (TO_AGENT, TO_SUPERVISOR):
            self._is_cut[direction] = True

    def heal(self) -> None:
        """Deliver what was held back."""
        for direction, held in enumerate(self._held):
            self._is_cut[direction] = False
            while held:
                data = held.popleft()
                if not self._is_dead:
                    self._ends[direction].arrive(data)

    def die(self) -> None:
        """The host has lost power: nothing comes through from now on."""
        self._is_dead = True
        self.cut()

    def reset(self) -> None:
        """A device between the ends resets the stream; both see it at once."""
        for end in self._ends:
            end.reset()
