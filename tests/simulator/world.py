"""The world: what will happen, in the order of its time, and what did. Time is in seconds from the beginning."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from simulator.descriptors import File


class Violation(Exception):
    """An invariant does not hold: its name, and what was seen."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


class Entry(NamedTuple):
    """One thing that happened. The words are put together only when somebody reads them."""

    time: float
    words: tuple[Any, ...]

    def line(self) -> str:
        """Return it as a line of text."""
        return f"{self.time:11.6f}  " + " ".join(str(word) for word in self.words)


class World:
    """Calls what is due, one thing after the other. All chance comes from ``random``."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.files: dict[int, File] = {}
        self.happened: list[Entry] = []
        self.faults: Counter[str] = Counter()
        self.count = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def number(self) -> int:
        """Return a number that nothing else in this world has."""
        self._number += 1
        return self._number

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Have something happen at a time."""
        self._number += 1
        heapq.heappush(self._due, (when if when > self.now else self.now, self._number, call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Have something happen so much later."""
        self.at(self.now + seconds, call)

    def within(self, least: float, most: float) -> float:
        """Return a number of seconds, by chance."""
        return least + (most - least) * self.random.random()

    def chance(self, share: float) -> bool:
        """Return whether something is so, by chance."""
        return self.random.random() < share

    @property
    def next_at(self) -> float:
        """When something will happen next; infinite for never."""
        return self._due[0][0] if self._due else float("inf")

    def step(self) -> None:
        """Let the next thing happen."""
        self.now, _, call = heapq.heappop(self._due)
        self.count += 1
        call()

    def run_until(self, when: float) -> None:
        """Let everything happen until a time."""
        while self.next_at <= when:
            self.step()
        self.now = max(self.now, when)

    def note(self, *words: Any) -> None:
        """Remember what happened, for people."""
        self.happened.append(Entry(self.now, words))

    def fault(self, kind: str, *words: Any) -> None:
        """Remember that a fault was injected."""
        self.faults[kind] += 1
        self.note("FAULT", kind, *words)
