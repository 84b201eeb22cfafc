"""Named states, replaced and never changed, of which is known without a look at each how many bear a mark."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar


class Marked(Protocol):
    """A state that says by which marks it is counted."""

    @property
    def marks(self) -> Iterable[Hashable]:
        """The marks of this state, each once."""


State = TypeVar("State", bound=Marked)


class Ledger(Mapping[str, State], Generic[State]):
    """States by name, in an order that stays.

    A job of a thousand tasks has thousands of events, and after each it is asked whether anything lives, waits or is
    late: answers that take a look at every task would make it the slower the larger it is.
    """

    __slots__ = ("_counts", "_states")

    def __init__(self, states: Mapping[str, State]) -> None:
        """Begin with these states."""
        self._states: dict[str, State] = {}
        self._counts: dict[Hashable, int] = {}
        self._take(states)

    def count(self, *marks: Hashable) -> int:
        """Return how many states bear these marks, one that bears several as many times."""
        return sum(self._counts.get(mark, 0) for mark in marks)

    def replaced(self, states: Mapping[str, State]) -> Ledger[State]:
        """Return the ledger with these states in the place of those of the same names."""
        ledger = Ledger[State]({})
        ledger._states = self._states.copy()
        ledger._counts = self._counts.copy()
        ledger._take(states)
        return ledger

    def _take(self, states: Mapping[str, State]) -> None:
        counts = self._counts
        for name, state in states.items():
            earlier = self._states.get(name)
            for mark in earlier.marks if earlier is not None else ():
                counts[mark] -= 1
            for mark in state.marks:
                counts[mark] = counts.get(mark, 0) + 1
            self._states[name] = state

    def __getitem__(self, name: str) -> State:
        return self._states[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)
