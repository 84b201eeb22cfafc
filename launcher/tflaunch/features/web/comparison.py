"""Compare runs: what differs between what they are made of, and how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from tflaunch.features.records import run_diff

_FIRST = ("results", "spec")


class Row(TypedDict):
    """A value that is not the same in all runs; null in those that do not have it."""

    section: str
    name: str
    values: list[Any]


def compare_runs(directories: Sequence[Path]) -> list[Row]:
    """Return what differs between runs, each with its value in every run, in their order.

    Raises:
        TflaunchError: a journal is missing or damaged.
    """
    first, *others = directories
    rows: dict[tuple[str, str], list[Any]] = {}
    for number, other in enumerate(others, 1):
        for found in run_diff.compare(first, other):
            values = rows.setdefault((found.section, found.name), [found.first] * len(directories))
            values[number] = found.second
    order = sorted(rows, key=lambda key: _FIRST.index(key[0]) if key[0] in _FIRST else len(_FIRST))
    return [{"section": section, "name": name, "values": rows[section, name]} for section, name in order]
