"""docs/errors.md: the hierarchy of all exceptions."""

from __future__ import annotations

import ast
import builtins
import functools
import re
from typing import NamedTuple

import pytest

from support.specs import REPOSITORY

pytestmark = pytest.mark.unit

PAGE = REPOSITORY / "docs" / "errors.md"
FIXED = {"JobFailed", "CannotTrain"}
"""Names that programs import."""


class Listed(NamedTuple):
    """An exception, as a row of the page begins."""

    name: str
    base: str
    module: str


@functools.cache
def classes() -> list[Listed]:
    """Return all classes of the code, with each of their bases."""
    found = []
    for root in (REPOSITORY / "launcher" / "tflaunch", REPOSITORY / "worker"):
        for path in root.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
                    found += [Listed(node.name, base, str(path.relative_to(root))) for base in bases]
    return found


@functools.cache
def exceptions() -> set[Listed]:
    """Return those that derive from an exception, through any number of others."""
    known = {
        name for name, each in vars(builtins).items() if isinstance(each, type) and issubclass(each, BaseException)
    }
    found = set[Listed]()
    while more := {each for each in classes() if each.base in known} - found:
        found |= more
        known |= {each.name for each in more}
    return found


def test_the_page_has_all_errors() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `([\w/]+\.py)` \|", PAGE.read_text(), re.MULTILINE)
    assert {Listed(*row) for row in rows} == exceptions()
    assert len(rows) == len(exceptions())


def test_names_of_errors_end_in_error() -> None:
    """Also of those that derive from BaseException, which ruff does not see."""
    names = {each.name for each in exceptions()}
    assert {name for name in names if not name.endswith("Error")} == FIXED
