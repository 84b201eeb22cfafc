"""Find the Python program of a command, and the files that it imports."""

from __future__ import annotations

import ast
import os
import re
import stat
import warnings
from typing import Iterator

SCRIPT = "script"
MODULE = "module"
TEXT = "text"

_PYTHON = re.compile(r"python[\d.]*")


def find_program(argv: list[str]) -> tuple[str, int] | None:
    """Return a command's `SCRIPT`, `MODULE` or `TEXT`, and the index of its argument.

    The result is None unless the command is ``python script.py …``, ``python -m module …`` or ``python -c text …``,
    with no option other than ``-u``.
    """
    index = 1
    while argv[index : index + 1] == ["-u"]:
        index += 1
    if argv[index : index + 1] == ["-m"]:
        name = argv[index + 1 : index + 2]
        return (MODULE, index + 1) if name and all(part.isidentifier() for part in name[0].split(".")) else None
    if argv[index : index + 1] == ["-c"]:
        return (TEXT, index + 1) if index + 1 < len(argv) else None
    if index < len(argv) and argv[index].endswith(".py") and not argv[index].startswith("-"):
        return SCRIPT, index
    return None


def check_command(argv: list[str]) -> str:
    """Return why a command's arguments rule out a fork, or "" if they do not."""
    if not argv or not _PYTHON.fullmatch(os.path.basename(argv[0])):
        return "its command does not start with a Python"
    if find_program(argv) is None:
        return "only `python script.py`, `python -m module` and `python -c text` can be forked"
    return ""


def imported_files(node: ast.AST, path: str, roots: list[str]) -> list[str]:
    """Return the files below ``roots`` that a node imports: modules and packages."""
    return [found for place in _imported(node, path, roots) for found in [module_file(place)] if found]


def _imported(node: ast.AST, path: str, roots: list[str]) -> Iterator[str]:
    """Yield the paths, without suffix, of a statement's imports; packages first."""
    if isinstance(node, ast.Import):
        names = [alias.name.split(".") for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        module = node.module.split(".") if node.module else []
        names = [[*module, alias.name] for alias in node.names]
        if node.level:
            for _ in range(node.level):
                path = os.path.dirname(path)
            roots = [path]
            yield path
    else:
        return
    for parts in names:
        yield from module_places(parts, roots)


def module_places(parts: list[str], roots: list[str]) -> Iterator[str]:
    """Yield the paths, without suffix, at which a module and its packages may be."""
    for root in roots:
        for count in range(len(parts)):
            yield os.path.join(root, *parts[: count + 1])


def module_file(place: str) -> str | None:
    """Return the file of a package or module, from its path without suffix, or None."""
    for path in (os.path.join(place, "__init__.py"), f"{place}.py"):
        if os.path.isfile(path):
            return path
    return None


def read_source(path: str, most: int) -> bytes:
    """Return the bytes of a regular file; nothing else is read, as it might block.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is something else, or has more than ``most`` bytes.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        read = file.read(most + 1)
    if len(read) > most:
        raise ValueError("it is too large")
    return read


def parse_source(text: str | bytes) -> ast.Module:
    """Return the syntax tree of a program.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it is none.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in texts, which Python would print
        return ast.parse(text)
