"""A mapping that is replaced and never changed, where a change costs as much as a small part of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

_BLOCK = 128  # entries that are copied together

Value = TypeVar("Value")


class Table(Mapping[str, Value], Generic[Value]):
    """Values by name, in the order in which the names came.

    A change copies the block of entries that it is in. A copy of everything would make each of a job's events, of which
    there are as many as tasks, the dearer the more tasks there are.
    """

    __slots__ = ("_blocks", "_places", "_size")

    def __init__(self, values: Mapping[str, Value] = {}) -> None:
        """Begin with these values."""
        self._blocks: list[dict[str, Value]] = []
        # Name to the number of its block. All that come of one table share it: what is in its block only one knows.
        self._places: dict[str, int] = {}
        self._size = 0
        self._put(values)

    def replaced(self, values: Mapping[str, Value]) -> Table[Value]:
        """Return the table with these values in the place of those of the same names, or behind all."""
        table: Table[Value] = Table.__new__(Table)
        table._share(self)
        table._put(values)
        return table

    def without(self, names: Iterable[str]) -> Table[Value]:
        """Return the table without these names; those that it does not have make no difference."""
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
        """Take values; return the numbers of the blocks in which they are."""
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
        """The number of a name's block, which is there afterwards."""
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
