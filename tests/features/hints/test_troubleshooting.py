"""docs/troubleshooting.md: each heading is the text of a message."""

from __future__ import annotations

import ast
import functools
import re

import pytest

from support.specs import REPOSITORY
from tflaunch.features.hints.hint_rules import RULES

pytestmark = pytest.mark.unit

PAGE = REPOSITORY / "docs" / "troubleshooting.md"
HEADINGS = re.findall(r"^### (.+)$", PAGE.read_text(), re.MULTILINE)
OF_PYTHON = ("No such file or directory",)
"""What the operating system says, as the end of a message."""


@functools.cache
def texts() -> list[str]:
    """Return all texts in the code, with an ellipsis for each value in them."""
    found = []
    for path in [*REPOSITORY.glob("launcher/**/*.py"), *REPOSITORY.glob("worker/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"\{\w+\}", "…", node.value))
    return found


def is_printed(heading: str) -> bool:
    """Return whether one text of the code has all parts of a heading, in their order."""
    for words in OF_PYTHON:
        heading = heading.removesuffix(words)
    parts = [part for part in re.split(r"\s*…\s*", heading) if part]
    pattern = re.compile("[\\s\\S]*".join(map(re.escape, parts)))
    return any(pattern.search(text) for text in texts())


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_heading_is_a_message(heading: str) -> None:
    of_tensorflow = [rule for rule in RULES if rule.pattern and re.search(rule.pattern, heading)]
    assert is_printed(heading) or of_tensorflow


def test_a_heading_that_is_not_a_message_is_noticed() -> None:
    """Else the test above could not fail."""
    assert not is_printed("the moon is … away")
    assert len(HEADINGS) > 35
