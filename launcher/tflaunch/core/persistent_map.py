"""Persistent map: an update copies one block of 128 entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

_BLOCK = 128  # entries copied by an update

Value = TypeVar("Value")


class Table(Mapping[str, Value], Generic[Value]):
    """Immutable map of values by name, in insertion order.

    An update copies only the block that it changes. A full copy would make every event cost time proportional to the
    number of tasks, and the number of events grows with the tasks as well.
    """

    __slots__ = ("_blocks", "_places", "_size")

    def __init__(self, values: Mapping[str, Value] = {}) -> None:
        """Create a map of these values."""
        self._blocks: list[dict[str, Value]] = []
        # Name to the number of its block, shared by all tables derived from one; a name may be missing in its block.
        self._places: dict[str, int] = {}
        self._size = 0
        self._put(values)

    def replaced(self, values: Mapping[str, Value]) -> Table[Value]:
        """Return the table with these values; new names are added at the end."""
        table: Table[Value] = Table.__new__(Table)
        table._share(self)
        table._put(values)
        return table

    def without(self, names: Iterable[str]) -> Table[Value]:
        """Return the table without these names; unknown names are ignored."""
        gone = {name for name in names if name in self}
        if not gone:
            return self
        table: Table[Value] = Table.__new__(Table)
        table._share(self)
        for number in {self._places[name] for name in gone}:
            kept = {name: value for name, value in self._blocks[number].items() if name not in gone}
            table._blocks[number] = kept
        table._size -= len(gone)
        return table

    def _share(self, earlier: Table[Value]) -> None:
        self._blocks = earlier._blocks.copy()
        self._places = earlier._places
        self._size = earlier._size

    def _put(self, values: Mapping[str, Value]) -> set[int]:
        """Insert values and return the numbers of the changed blocks."""
        touched: set[int] = set()
        blocks, places = self._blocks, self._places
        for name, value in values.items():
            number = places.get(name, -1)
            if not 0 <= number < len(blocks):
                number = self._place(name)
            if number not in touched:
                touched.add(number)
                blocks[number] = blocks[number].copy()
            block = blocks[number]
            self._size += name not in block
            block[name] = value
        return touched

    def _place(self, name: str) -> int:
        """Return the number of a name's block, created if necessary."""
        number = self._places.get(name)
        if number is None:
            is_full = not self._blocks or len(self._blocks[-1]) >= _BLOCK
            number = self._places[name] = len(self._blocks) - (not is_full)
        while number >= len(self._blocks):
            self._blocks.append({})
        return number

    def _found(self, name: str) -> Value | None:
        number = self._places.get(name)
        return None if number is None or number >= len(self._blocks) else self._blocks[number].get(name)

    def __getitem__(self, name: str) -> Value:
        number = self._places[name]
        if number >= len(self._blocks):
            raise KeyError(name)
        return self._blocks[number][name]

    def __iter__(self) -> Iterator[str]:
        for block in self._blocks:
            yield from block

    def __len__(self) -> int:
        return self._size
