"""The table of planted bugs fits the code. Whether they are found, `make mutants` says."""

import ast
from pathlib import Path

import pytest

from mutants.edits import Edit, Suite, copy_code
from mutants.table import MUTANTS
from support.page_tables import read_table
from support.specs import REPOSITORY

PAGE = REPOSITORY / "docs" / "reliability.md"
PACKAGES = ("launcher/tflaunch/core", "launcher/tflaunch/agents", "worker/tflaunch_worker/agent")
MODULES = [path for package in PACKAGES for path in sorted((REPOSITORY / package).rglob("[!_]*.py"))]


@pytest.mark.parametrize("name", MUTANTS)
def test_what_a_bug_replaces_occurs_once(name: str) -> None:
    """Otherwise the code has changed, and the bug with it."""
    assert MUTANTS[name].count() == 1


@pytest.mark.parametrize("name", [name for name, edit in MUTANTS.items() if isinstance(edit.found_by, Suite)])
def test_the_tests_that_find_a_bug_exist(name: str) -> None:
    """A file below tests, or one of its tests."""
    suite = MUTANTS[name].found_by
    assert isinstance(suite, Suite)
    path, _, test = suite.path.partition("::")
    assert f"def {test}" in (REPOSITORY / "tests" / path).read_text()


def test_every_module_has_a_planted_bug() -> None:
    """In the packages that decide which tasks live."""
    edited = {edit.module for edit in MUTANTS.values()}
    dotted = {path: ".".join(path.relative_to(REPOSITORY).with_suffix("").parts[1:]) for path in MODULES}
    missing = [path for path, name in dotted.items() if name not in edited]
    assert not missing


def test_the_page_names_every_planted_bug() -> None:
    """`make mutants` writes its table."""
    named = [row[1] for row in read_table(PAGE, "planted bugs")]
    assert sorted(named) == sorted(MUTANTS)


def test_a_bug_is_planted_into_a_copy_of_the_code(tmp_path: Path) -> None:
    """In its place, and nowhere else."""
    edit = Edit("core.job_state.StateTable.count", "sum(", "min(", Suite("unit/test_budget.py"))
    copy_code(tmp_path)
    edit.plant_in(tmp_path)
    path = Path("launcher/tflaunch/core/job_state.py")
    before, after = ((root / path).read_text().splitlines() for root in (REPOSITORY, tmp_path))
    (changed,) = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert changed[1] == changed[0].replace("sum(", "min(")
    ast.parse((tmp_path / path).read_text())
