"""Read the budgets of docs/budgets.md: what each part of tflaunch may cost."""

import re
from collections.abc import Iterable
from pathlib import Path

_PAGE = Path(__file__).resolve().parent.parent / "docs" / "budgets.md"
_ROW = re.compile(r"^\| `([a-z ]+)` \|(?:[^|]*[a-z][^|]*\|)?((?: [\d.]+ \|)+)$", re.MULTILINE)


def budgets() -> dict[str, list[float]]:
    """Return the budgets of each part, one for each column of its table."""
    return {name: [float(cell) for cell in cells.split("|")[:-1]] for name, cells in _ROW.findall(_PAGE.read_text())}


def exceeded(costs: Iterable[tuple[str, float | None, float]]) -> list[str]:
    """Return a list item with the name, cost and budget of each part whose cost is over its budget."""
    over = [f"{name} ({cost:.2f} of {budget:g})" for name, cost, budget in costs if cost is not None and cost > budget]
    return ["", f"- Over budget: {', '.join(over)}."] if over else []
