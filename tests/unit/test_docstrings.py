"""Docstrings begin with one short line: it is what editors, help and the reference show of them."""

import ast
from collections.abc import Iterator
from pathlib import Path

from support.specs import REPOSITORY

MOST_CHARACTERS = 80


def first_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line number of each docstring in a file, and its first line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text.partition("\n")[0]


def test_the_first_line_of_a_docstring_is_short() -> None:
    long: list[str] = []
    for root in (REPOSITORY / "launcher" / "tflaunch", REPOSITORY / "worker" / "tflaunch_worker"):
        for path in sorted(root.rglob("*.py")):
            numbers = [number for number, line in first_lines(path) if len(line) > MOST_CHARACTERS]
            long += [f"{path.relative_to(REPOSITORY)}:{number}" for number in numbers]
    assert long == [], f"first lines of docstrings have at most {MOST_CHARACTERS} characters"
