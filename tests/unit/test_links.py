"""The links between the documents: each leads to a file, and to a heading in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.specs import REPOSITORY

pytestmark = pytest.mark.unit

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    return [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("*/*.md"), *REPOSITORY.glob("docs/*/*.md")]


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
    found = {str(page.relative_to(REPOSITORY)): list(broken(page)) for page in pages()}
    assert len(found) > 30
    assert {page: links for page, links in found.items() if links} == {}
