"""Named states, replaced and never changed, of which is known without a look at each how many bear a mark."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from math import inf
from typing import Generic, Protocol, TypeVar

from tflaunch.core.persistent_map import Table


class Marked(Protocol):
    """A state that says by which marks it is counted."""

    @property
    def marks(self) -> Iterable[Hashable]:
        """The marks of this state, each once."""


State = TypeVar("State", bound=Marked)


class Ledger(Table[State], Generic[State]):
    """States by name, in an order that stays.

    A job of a thousand tasks has thousands of events, and after each it is asked whether anything lives, waits or is
    late: answers that take a look at every task would make it the slower the larger it is.
    """

    __slots__ = ("_counts", "_soonest")

    def __init__(self, states: Mapping[str, State]) -> None:
        """Begin with these states."""
        self._counts: dict[Hashable, int] = {}
        self._soonest: dict[int, dict[object, float]] = {}  # of blocks that were looked at
        super().__init__(states)

    def count(self, *marks: Hashable) -> int:
        """Return how many states bear these marks, one that bears several as many times."""
        return sum(self._counts.get(mark, 0) for mark in marks)

    def replaced(self, states: Mapping[str, State]) -> Ledger[State]:
        """Return the ledger with these states in the place of those of the same names."""
        ledger: Ledger[State] = Ledger.__new__(Ledger)
        ledger._share(self)
        ledger._counts = self._counts.copy()
        ledger._soonest = self._soonest.copy()
        ledger._put(states)
        return ledger

    def soonest(self, time: Callable[[State], float | None]) -> float | None:
        """Return the least of a time that states have, None when none has it.

        Args:
            time: the same function for the same question: answers about states that stay are kept.
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
        """Give the states that were others in an earlier ledger of the same names: what they were, and are."""
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
