"""The table of environments in docs/warm_start.md, which tests/training/test_preload_environments.py writes."""

from __future__ import annotations

import pytest

from support.preload_environments import ENVIRONMENTS, HEAD, PAGE, refusal, with_row

pytestmark = pytest.mark.unit


def test_a_row_is_changed_and_nothing_else() -> None:
    """In the order of the environments, also for one that had no row."""
    page = f"# Title\n\n{HEAD}\n|---|---|---|\n| polars | polars 1 | as it was |\n\n## More\n"
    page = with_row(page, "polars", "polars 2", "refused")
    assert page.splitlines()[4:] == ["| polars | polars 2 | refused |", "", "## More"]
    page = with_row(page, "pandas", "pandas 3", "forked")
    assert page.splitlines()[4:6] == ["| pandas | pandas 3 | forked |", "| polars | polars 2 | refused |"]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_page_says_what_becomes_of_each_environment(name: str) -> None:
    """All 200 starts, or the module that is refused."""
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name} |")]
    _, _, packages, result, _ = (cell.strip() for cell in row.split("|"))
    wanted = ENVIRONMENTS[name]
    assert tuple(package.split()[0] for package in packages.split(", ")) == wanted.packages
    assert result == (refusal(wanted.refused) if wanted.refused else "forked, 200 of 200")
