"""The documents: links lead somewhere, docs/errors.md has all errors, docs/compatibility.md its table."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import matrix
from support.specs import REPOSITORY

pytestmark = pytest.mark.unit

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as the usual viewers make them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def broken(page: Path) -> Iterator[str]:
    """Yield the links of a page that lead nowhere."""
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        if "://" in link or path.startswith("mailto:"):
            continue
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


def test_every_link_leads_somewhere() -> None:
    pages = [page for pattern in ("*.md", "*/*.md", "docs/*/*.md") for page in REPOSITORY.glob(pattern)]
    found = {str(page.relative_to(REPOSITORY)): list(broken(page)) for page in pages}
    assert len(found) > 30
    assert {page: links for page, links in found.items() if links} == {}


class Listed(NamedTuple):
    """An exception, as a row of the page begins."""

    name: str
    base: str
    module: str


def exceptions() -> set[Listed]:
    """Return the exceptions of the code: what derives from one, through any number of others."""
    classes = []
    for root in (REPOSITORY / "launcher" / "tflaunch", REPOSITORY / "worker"):
        for path in root.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
                    classes += [Listed(node.name, base, str(path.relative_to(root))) for base in bases]
    known = {
        name for name, each in vars(builtins).items() if isinstance(each, type) and issubclass(each, BaseException)
    }
    found = set[Listed]()
    while more := {each for each in classes if each.base in known} - found:
        found |= more
        known |= {each.name for each in more}
    return found


def test_the_page_has_all_errors_and_their_names_end_in_error() -> None:
    """Also of those that derive from BaseException, which ruff does not see."""
    page = (REPOSITORY / "docs" / "errors.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `([\w/]+\.py)` \|", page, re.MULTILINE)
    found = exceptions()
    assert {Listed(*row) for row in rows} == found
    assert len(rows) == len(found)
    assert {name for name, *_ in rows if not name.endswith("Error")} == {"JobFailed", "CannotTrain"}


def test_a_cell_is_changed_and_nothing_else() -> None:
    written = matrix.PAGE.read_text()
    (row,) = [line for line in written.splitlines() if line.startswith("| 3.11 |")]
    changed = matrix.with_cell(written, "3.11", "2.21", "tried")
    assert changed.count("tried") == written.count("tried") + 1
    assert matrix.with_cell(changed, "3.11", "2.21", matrix.cells_of(row)[-1]) == written
