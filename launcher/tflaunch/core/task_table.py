"""Immutable map of task or host states that keeps a count per mark."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from math import inf
from typing import Generic, Protocol, TypeVar

from tflaunch.core.persistent_map import Table


class Marked(Protocol):
    """A state with the marks that it is counted by."""

    @property
    def marks(self) -> Iterable[Hashable]:
        """The distinct marks of this state."""


State = TypeVar("State", bound=Marked)


class Ledger(Table[State], Generic[State]):
    """Immutable map of states by name, in insertion order, with counts per mark.

    A job of a thousand tasks has thousands of events, and each asks whether any task is alive, waiting or late.
    Counts answer that without scanning all tasks.
    """

    __slots__ = ("_counts", "_soonest")

    def __init__(self, states: Mapping[str, State]) -> None:
        """Create a map of these states."""
        self._counts: dict[Hashable, int] = {}
        self._soonest: dict[int, dict[object, float]] = {}  # cache per block
        super().__init__(states)

    def count(self, *marks: Hashable) -> int:
        """Return the number of states with these marks; a state with several of them counts several times."""
        return sum(self._counts.get(mark, 0) for mark in marks)

    def replaced(self, states: Mapping[str, State]) -> Ledger[State]:
        """Return the ledger with these states replaced."""
        ledger: Ledger[State] = Ledger.__new__(Ledger)
        ledger._share(self)
        ledger._counts = self._counts.copy()
        ledger._soonest = self._soonest.copy()
        ledger._put(states)
        return ledger

    def soonest(self, time: Callable[[State], float | None]) -> float | None:
        """Return the earliest time of any state, None if no state has one.

        Args:
            time: returns a state's time; results are cached per function object, so pass the same one each time.
        """
        least = min((self._soonest_in(number, time) for number in range(len(self._blocks))), default=inf)
        return None if least == inf else least

    def _soonest_in(self, number: int, time: Callable[[State], float | None]) -> float:
        known = self._soonest.setdefault(number, {})
        if time not in known:
            moments = [moment for state in self._blocks[number].values() if (moment := time(state)) is not None]
            known[time] = min(moments, default=inf)
        return known[time]

    def since(self, earlier: Ledger[State]) -> Iterator[tuple[State, State]]:
        """Yield the states, as pairs of old and new, that differ from an earlier ledger with the same names."""
        for block, other in zip(self._blocks, earlier._blocks, strict=True):
            if block is not other:
                yield from ((other[name], state) for name, state in block.items() if other[name] is not state)

    def _put(self, states: Mapping[str, State]) -> set[int]:
        counts = self._counts
        for name, state in states.items():
            earlier = self._found(name)
            for mark in earlier.marks if earlier is not None else ():
                counts[mark] -= 1
            for mark in state.marks:
                counts[mark] = counts.get(mark, 0) + 1
        touched = super()._put(states)
        for number in touched:
            self._soonest.pop(number, None)
        return touched
