"""A table always equals the corresponding dict, and an update copies only a part of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tflaunch.core.persistent_map import Table

pytestmark = pytest.mark.unit

NAMES = some.sampled_from([f"task:{number}" for number in range(300)])  # more than one block
CHANGES = some.one_of(some.dictionaries(NAMES, some.integers()), some.frozensets(NAMES, max_size=20))


@given(some.dictionaries(NAMES, some.integers()), some.lists(CHANGES))
def test_it_says_what_a_dict_would(first: dict[str, int], changes: list[dict[str, int] | frozenset[str]]) -> None:
    """After any updates and removals; earlier tables do not change."""
    table, known = Table(first), dict(first)
    history = [(table, dict(known))]
    for change in changes:
        if isinstance(change, dict):
            table = table.replaced(change)
            known.update(change)
        else:
            table = table.without(change)
            known = {name: value for name, value in known.items() if name not in change}
        history.append((table, dict(known)))
    for one, expected in history:
        assert dict(one) == expected
        assert len(one) == len(expected)
        assert [one.get(f"task:{number}") for number in range(300)] == [
            expected.get(f"task:{number}") for number in range(300)
        ]


def test_two_that_come_of_one_know_nothing_of_each_other() -> None:
    """Each contains a name that the other lacks."""
    first = Table({"a": 1})
    left, right = first.replaced({"b": 2}), first.replaced({"c": 3})
    assert (dict(first), dict(left), dict(right)) == ({"a": 1}, {"a": 1, "b": 2}, {"a": 1, "c": 3})
    assert dict(right.replaced({"b": 4})) == {"a": 1, "b": 4, "c": 3}


def test_names_stay_in_their_order() -> None:
    """With a thousand names, each replaced once."""
    names = [f"worker:{number}" for number in range(1000)]
    table = Table(dict.fromkeys(names, 0))
    for name in reversed(names):
        table = table.replaced({name: 1})
    assert list(table) == names
    assert set(table.values()) == {1}


@pytest.mark.parametrize("size", [1_000, 10_000])
def test_a_change_copies_no_more_of_a_large_table(size: int) -> None:
    """All entries outside one block are the identical objects."""
    table = Table({f"worker:{number}": 0 for number in range(size)})
    changed = table.replaced({f"worker:{size // 2}": 1})
    copied = [block for block, other in zip(changed._blocks, table._blocks, strict=True) if block is not other]
    assert len(copied) == 1
    assert len(copied[0]) <= 128
