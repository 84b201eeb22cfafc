"""The table of Python and TensorFlow versions in docs/compatibility.md, which tests/matrix.py writes."""

from __future__ import annotations

import pytest

import matrix

pytestmark = pytest.mark.unit


def test_a_cell_is_changed_and_nothing_else() -> None:
    page = matrix.with_cell("# Title\n\n| Python |\n|---|\n\nMore.\n", "3.12", "2.19", "passes")
    assert page.startswith("# Title\n\n| Python | TensorFlow 2.16 |")
    assert page.endswith("|\n\nMore.\n")
    assert page.count("passes") == 1
    assert page.count(matrix.NOT_RUN) == len(matrix.PYTHONS) * len(matrix.TENSORFLOWS) - 1
    again = matrix.with_cell(page, "3.10", "2.16", matrix.NO_WHEEL)
    assert again.replace(matrix.NO_WHEEL, matrix.NOT_RUN) == page


def test_the_page_has_its_table() -> None:
    page = matrix.PAGE.read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| 3.11 |")]
    cell = matrix.cells_of(row)[-1]
    assert matrix.with_cell(page, "3.11", "2.21", cell) == page
