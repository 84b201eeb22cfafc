"""Plant a bug: replace a piece of the text of a function, wherever the function is used."""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any, NamedTuple


class Edit(NamedTuple):
    """A planted bug: a seed and the invariant that find it, and what is replaced in the text of which function.

    ``where`` is the path of the function, such as ``package.module.Class.method``; ``old`` occurs once in its text.
    """

    seed: int
    invariant: str
    where: str
    old: str
    new: str

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant the bug, and remove it again."""
        function = _find(self.where)
        text = textwrap.dedent(inspect.getsource(function))
        assert text.count(self.old) == 1, f"{self.where} has {text.count(self.old)} times {self.old!r}"
        original = function.__code__
        function.__code__ = _code_of(text.replace(self.old, self.new), function)
        try:
            yield
        finally:
            function.__code__ = original


def _find(where: str) -> FunctionType:
    module, _, name = where.rpartition(".")
    owner: Any
    try:
        owner = importlib.import_module(module)
    except ModuleNotFoundError:
        module, _, outer = module.rpartition(".")
        owner = getattr(importlib.import_module(module), outer)
    found = inspect.getattr_static(owner, name)
    function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    assert isinstance(function, FunctionType)
    return function


def _code_of(text: str, function: FunctionType) -> CodeType:
    tree = ast.parse(text)
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    # Annotations may name what exists for type checkers only; the flag leaves them unevaluated.
    names: dict[str, Any] = {}
    code = compile(
        tree, inspect.getfile(function), "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True
    )
    exec(code, function.__globals__, names)
    edited = names[function.__name__].__code__
    assert isinstance(edited, CodeType)
    return edited
