"""Plant a bug: replace a piece of the text of a function, class or module, in this process or in a copy of the code."""

import __future__

import ast
import importlib
import inspect
import shutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from support.specs import REPOSITORY

_PACKAGES = ("launcher/tflaunch", "worker/tflaunch_worker")


class Invariant(NamedTuple):
    """What finds a bug in the simulator: the invariant that fails, and the first seed from 0 on in which it does."""

    name: str
    seed: int


class Suite(NamedTuple):
    """What finds a bug that the simulator cannot see: a file of tests below ``tests``, or one test (``file::test``)."""

    path: str


class Edit(NamedTuple):
    """A planted bug: what is replaced in the text of which function, class or module, and what finds it.

    ``where`` is a path such as ``core.module.Class.method``, below `tflaunch` unless it begins with `tflaunch_worker`;
    ``old`` occurs once in the text of that object.
    """

    where: str
    old: str
    new: str
    found_by: Invariant | Suite

    @property
    def path(self) -> str:
        """The whole path of what is edited."""
        return _whole(self.where)

    @property
    def module(self) -> str:
        return _module_of(self.where).__name__

    def count(self) -> int:  # type: ignore[override]
        """Return how often the text that is replaced occurs: 1, unless the code has changed."""
        return inspect.getsource(_find(self.where)).count(self.old)

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant the bug into a function, wherever it is used in this process, and remove it again."""
        function = _find(self.where)
        assert isinstance(function, FunctionType), f"{self.where} is not a function"
        text = textwrap.dedent(inspect.getsource(function))
        assert text.count(self.old) == 1, f"{self.where} has {text.count(self.old)} times {self.old!r}"
        original = function.__code__
        function.__code__ = _code_of(text.replace(self.old, self.new), function)
        try:
            yield
        finally:
            function.__code__ = original

    def plant_in(self, copy: Path) -> None:
        source = inspect.getsourcefile(_module_of(self.where))
        assert source is not None
        lines, first = inspect.getsourcelines(_find(self.where))
        text, start = "".join(lines), max(first - 1, 0)
        assert text.count(self.old) == 1, f"{self.where} has {text.count(self.old)} times {self.old!r}"
        path = _path_in(copy, Path(source))
        whole = path.read_text().splitlines(keepends=True)
        whole[start : start + len(lines)] = [text.replace(self.old, self.new)]
        ast.parse("".join(whole))
        path.write_text("".join(whole))


def copy_code(directory: Path) -> str:
    """Copy the packages to a directory; return the PYTHONPATH with which they are imported from there."""
    for package in _PACKAGES:
        shutil.copytree(REPOSITORY / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    return ":".join(str((directory / package).parent) for package in _PACKAGES)


def _path_in(copy: Path, source: Path) -> Path:
    return copy / source.resolve().relative_to(REPOSITORY.resolve())


def _module_of(where: str) -> ModuleType:
    name, *rest = _whole(where).split(".")
    module = importlib.import_module(name)
    for part in rest:
        try:
            module = importlib.import_module(f"{module.__name__}.{part}")
        except ModuleNotFoundError:
            break
    return module


def _whole(where: str) -> str:
    return where if where.startswith("tflaunch_worker.") else f"tflaunch.{where}"


def _find(where: str) -> Any:
    module = _module_of(where)
    found: Any = module
    for name in _whole(where).removeprefix(module.__name__).split(".")[1:]:
        found = inspect.getattr_static(found, name)
    found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    return inspect.unwrap(found) if callable(found) else found


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
