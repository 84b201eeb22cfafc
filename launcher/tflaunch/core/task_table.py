"""Immutable map of task or host states that keeps a count per tag."""

from __future__ import annotations

from collections.abc import Hashable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Protocol, TypeVar


class Tagged(Protocol):
    """A state with the tags that it is counted by."""

    @property
    def tags(self) -> Iterable[Hashable]:
        """The distinct tags of this state."""


State = TypeVar("State", bound=Tagged)


class StateTable(Mapping[str, State]):
    """Immutable map of states by name, in insertion order, with counts per tag.

    A job of a thousand tasks has thousands of events, and each asks whether any task is alive, waiting or late.
    Counts answer that without scanning all tasks.
    """

    __slots__ = ("_counts", "_states")

    def __init__(self, states: Mapping[str, State]) -> None:
        """Create a map of these states."""
        self._states: dict[str, State] = {}
        self._counts: dict[Hashable, int] = {}
        self._put(states)

    def count(self, *tags: Hashable) -> int:
        """Return how often states have these tags, several tags counted several times."""
        return sum(self._counts.get(tag, 0) for tag in tags)

    def replaced(self, states: Mapping[str, State]) -> StateTable[State]:
        """Return the table with these states replaced."""
        table: StateTable[State] = StateTable.__new__(StateTable)
        table._states = self._states.copy()
        table._counts = self._counts.copy()
        table._put(states)
        return table

    def _put(self, states: Mapping[str, State]) -> None:
        counts = self._counts
        for name, state in states.items():
            earlier = self._states.get(name)
            for tag in earlier.tags if earlier is not None else ():
                counts[tag] -= 1
            for tag in state.tags:
                counts[tag] = counts.get(tag, 0) + 1
            self._states[name] = state

    def __getitem__(self, name: str) -> State:
        return self._states[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def values(self) -> ValuesView[State]:
        """Return the states, without a look-up of each."""
        return self._states.values()

    def items(self) -> ItemsView[str, State]:
        """Return the names and states, without a look-up of each."""
        return self._states.items()
