"""The world: future events, in time order, and past ones. Time is in seconds from the start."""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from simulator.descriptors import File


_NEVER = float("inf")
_EPOCH = 1_800_000_000.0  # seconds from the Unix epoch to the start of each world


class Violation(Exception):
    """An invariant is violated: its name, and what was observed."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


class Entry(NamedTuple):
    """An event of the past. Its text is only formatted when it is read."""

    time: float
    words: tuple[Any, ...]

    def line(self) -> str:
        return f"{self.time:11.6f}  " + " ".join(str(word) for word in self.words)


class World:
    """Executes due events one after another. All randomness comes from ``random``."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rarely = random.Random(f"rarely {seed}")
        """For what was added later, so that histories without it stay what they are."""
        self.now = 0.0
        self.files: dict[int, File] = {}
        self.happened: list[Entry] = []
        self.faults: Counter[str] = Counter()
        self.fault_at = 0.0  # when the last one was injected
        self.count = 0
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def wall_clock(self, ahead: float) -> float:
        """Return the seconds since the epoch by a clock that is this many seconds ahead."""
        return _EPOCH + self.now + ahead

    def number(self) -> int:
        self._number += 1
        return self._number

    def at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        self._number += 1
        heapq.heappush(self._due, (when if when > self.now else self.now, self._number, call, arguments))

    def after(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + seconds, call, *arguments)

    def within(self, least: float, most: float) -> float:
        return least + (most - least) * self.random.random()

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    @property
    def next_at(self) -> float:
        """When the next call is due; infinite for never."""
        return self._due[0][0] if self._due else _NEVER

    def step(self) -> None:
        self.now, _, call, arguments = heapq.heappop(self._due)
        self.count += 1
        call(*arguments)

    def run_until(self, when: float) -> None:
        while self._due and self._due[0][0] <= when:
            self.step()
        self.now = max(self.now, when)

    def note(self, *words: Any) -> None:
        self.happened.append(Entry(self.now, words))

    def fault(self, kind: str, *words: Any) -> None:
        self.faults[kind] += 1
        self.fault_at = self.now
        self.note("FAULT", kind, *words)
