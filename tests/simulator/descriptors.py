"""Descriptors: what a selector can wait for. The real `Mailbox` and `Loop` use the selectors here."""

import selectors
from collections.abc import Callable
from typing import Any

from simulator.world import Violation, World

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_SHORTEST = 1e-6  # minimum length of a wait: rounding must not stop the clock
_NEVER = float("inf")
_MOST_ROUNDS = 2000  # of a loop at one point in time: more means that it spins


class File:
    """A file with a descriptor. Readable and writable are levels, as for epoll."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.selector: Selector | None = None
        self.is_closed = False
        self.number = 1000 + world.number()
        world.files[self.number] = self

    def fileno(self) -> int:
        return self.number

    @property
    def is_readable(self) -> bool:
        return False

    @property
    def is_writable(self) -> bool:
        return False

    def changed(self) -> None:
        """Notify the selector that waits for it."""
        if self.selector is not None:
            self.selector.look(self)

    def read(self, size: int) -> bytes:
        raise BlockingIOError

    def close(self) -> None:
        self.is_closed = True
        self.world.files.pop(self.number, None)
        if self.selector is not None:
            self.selector.drop(self)


class Signal(File):
    """A pipe for wake-ups: readable after `set`, until it is read."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._is_set = False

    @property
    def is_readable(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self.changed()

    def take(self) -> None:
        self._is_set = False


class Selector:
    """The part of a selector that `Mailbox` and `Loop` use."""

    def __init__(self, world: World, wake: Callable[[], None]) -> None:
        self._world = world
        self._wake = wake
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._ready: dict[int, None] = {}

    def register(self, descriptor: int, events: int, data: Any) -> None:
        assert descriptor not in self._keys, f"descriptor {descriptor} is watched twice"
        file = self._world.files[descriptor]
        assert not file.is_closed
        self._keys[descriptor] = selectors.SelectorKey(descriptor, descriptor, events, data)
        file.selector = self
        self.look(file)

    def modify(self, descriptor: int, events: int, data: Any) -> None:
        self._keys[descriptor] = selectors.SelectorKey(descriptor, descriptor, events, data)
        self.look(self._world.files[descriptor])

    def unregister(self, descriptor: int) -> None:
        del self._keys[descriptor]
        self._ready.pop(descriptor, None)
        self._world.files[descriptor].selector = None

    def drop(self, file: File) -> None:
        """Stop waiting for a closed descriptor, as epoll does."""
        self._keys.pop(file.fileno(), None)
        self._ready.pop(file.fileno(), None)
        file.selector = None

    def get_key(self, descriptor: int) -> selectors.SelectorKey:
        return self._keys[descriptor]

    def get_map(self) -> dict[int, selectors.SelectorKey]:
        return self._keys

    def look(self, file: File) -> None:
        """Check whether a descriptor has become ready."""
        number = file.number
        if number not in self._ready and self._events(number, file):
            self._ready[number] = None
            self._wake()

    def collect(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready, in the order in which it became so."""
        if not self._ready:
            return []
        found = []
        for number in list(self._ready):
            events = self._events(number, self._world.files[number])
            if events:
                found.append((self._keys[number], events))
            else:
                del self._ready[number]
        return found

    def _events(self, number: int, file: File) -> int:
        events = _READ if file.is_readable else 0
        if self._keys[number].events & _WRITE and file.is_writable:
            events |= _WRITE
        return events


class Idle(Exception):
    """A loop has nothing to do for this many seconds; None means until it is woken."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__()
        self.seconds = seconds


class TurnSelector(Selector):
    """For a loop that the world calls: instead of waiting it returns control by raising `Idle`."""

    def __init__(self, world: World, wake: Callable[[], None]) -> None:
        super().__init__(world, wake)
        self._rounds = 0
        self._moment = -1.0

    def select(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        found = self.collect()
        if not found and (timeout is None or timeout > 0):
            raise Idle(timeout)
        if self._moment != self._world.now:
            self._moment, self._rounds = self._world.now, 0
        self._rounds += 1
        if self._rounds > _MOST_ROUNDS:
            raise Violation("I5", f"an agent's loop spins on {[key.fd for key, _ in found]}")
        return found


class WorldSelector(Selector):
    """For the supervisor: while it waits, the world continues."""

    def __init__(self, world: World) -> None:
        super().__init__(world, self.wake)
        self._is_woken = False
        self._rounds = 0
        self._moment = -1.0
        self.frozen_until = 0.0
        self.death: BaseException | None = None

    def wake(self) -> None:
        self._is_woken = True

    def select(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        world = self._world
        self._watch_spinning()
        end = _NEVER if timeout is None else world.now + max(timeout, _SHORTEST if timeout > 0 else 0)
        while True:
            if world.now < self.frozen_until:
                world.run_until(self.frozen_until)
            if self.death is not None:
                raise self.death
            if self._ready and (found := self.collect()):
                return found
            if self._is_woken:
                self._is_woken = False
                return []
            next_at = world.next_at
            if next_at > end:
                world.now = end
                return []
            if next_at == _NEVER:
                raise Violation("I5", "the run waits, and nothing will ever happen")
            world.step()

    def _watch_spinning(self) -> None:
        if self._moment != self._world.now:
            self._moment, self._rounds = self._world.now, 0
        self._rounds += 1
        if self._rounds > _MOST_ROUNDS:
            raise Violation("I5", f"the supervisor's loop spins: ready {list(self._ready)}, of {list(self._keys)}")
