"""Compare runs: what differs between what they are made of, and how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from tflaunch.features.records import run_diff
from tflaunch.features.web.inspection import redactor_of, shown_value

_FIRST = ("results", "spec")


class Row(TypedDict):
    """A value that is not the same in all runs; null in those that do not have it."""

    section: str
    name: str
    values: list[Any]


def compare_runs(directories: Sequence[Path]) -> list[Row]:
    """Return what differs between runs, each with its value in every run, in their order; secrets are replaced.

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
    redactor = redactor_of(*directories)

    def shown(name: str, value: Any) -> Any:
        return shown_value(name.rpartition(".")[2], value, redactor) if isinstance(value, str) else value

    return [
        {"section": section, "name": name, "values": [shown(name, value) for value in rows[section, name]]}
        for section, name in order
    ]
