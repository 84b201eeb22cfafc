"""Find reasons in the source of a program not to import modules before it.

Variables that TensorFlow reads during its import have no effect if the program sets them later, and a program that
changes `sys.path` may import other modules of the same names. The source is searched for both, including the modules
that it imports from its own directory or from PYTHONPATH.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Sequence

from tflaunch_worker import function
from tflaunch_worker.features import program_source

_READ_AT_IMPORT = re.compile(
    r"(?:TF|TPU|XLA|KERAS|CUDA|NVIDIA|HIP|ROC|ROCR|OPENBLAS|OMP|MKL|KMP|NUMEXPR|VECLIB|BLIS|GOTO|LD|ABSL|GRPC|NCCL"
    r"|PYTHON|PROTOCOL_BUFFERS|JAX|ONEDNN|DNNL|MALLOC|GLIBC)_[A-Z0-9_]+|PYTHONPATH"
)
READ_WITH_DEVICES = ("CUDA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH")
"""Variables that are read when devices are opened, and not while modules are imported.

Imports of TensorFlow 2.21, torch 2.14, jax 0.10, numba, transformers, xgboost, lightgbm and accelerate call no `getenv`
and read no `os.environ` for them. A process that has opened a device of NVIDIA's driver is not forked anyway.
"""
_HARMLESS = ("TF_CONFIG", *READ_WITH_DEVICES)
_SETTABLE = re.compile(r"(?:TF|XLA|KERAS|ABSL|GRPC|JAX)_[A-Z0-9_]+=[^,]*")
"""Variables that are set before an import as a program sets them. With those of threads, imports could start some."""
SLOW = ("tensorflow", "keras", "tf_keras", "jax", "torch")
"""Packages whose import takes seconds, and from which tasks are forked unasked."""
_HARMLESS_DECORATORS = ("classmethod", "dataclass", "property", "staticmethod")
_MUST_COME_FIRST = ("gevent", "eventlet", "dotenv")  # they change later imports, or set variables
_MOST_FILES = 200
_MOST_BYTES = 4 << 20
CHANGES_PATH = "changes where modules are looked for (sys.path)"
SETS_VARIABLES = "sets variables whose names cannot be known beforehand"
NO_MODULE = "its module cannot be found beforehand"
PRELOAD = "TFLAUNCH_PRELOAD"
"""Variable that lists the modules imported for a task, or holds "no: " and the reason."""


def own_places(python_path: str, workdir: str) -> list[str]:
    """Return the directories of a PYTHONPATH in which the user's code may be.

    A directory with a `*.dist-info` is one of installed packages, as `pip install --target` and the modules of a
    cluster make them: numpy in it mentions OPENBLAS_MAIN_FREE, and is no more the user's than elsewhere.
    """
    places = [os.path.abspath(os.path.join(workdir, place)) for place in python_path.split(":") if place]
    return [place for place in places if not any(name.endswith(".dist-info") for name in _names_in(place))]


def _names_in(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def check_source(
    argv: list[str], workdir: str, python_path: list[str], path: list[str], environ: Mapping[str, str]
) -> tuple[str, set[str]]:
    """Return the reason against imports before a program, or "", and its imports.

    Args:
        argv: the command of a Python program.
        workdir: its working directory.
        python_path: the directories of PYTHONPATH that may contain the user's code (see `own_places`).
        path: all directories in which modules are searched.
        environ: the environment of the zygote; setting a variable to the same value is harmless.
    """
    names: set[str] = set()
    found = _find_files(argv, workdir, python_path, path)
    return found.problem or _reason_in(found, names, environ), names


class _Files(NamedTuple):
    """The files that a program runs first, in this order, and where it imports others.

    Args:
        first: their paths; "" for ``text``.
        roots: the directories in which the user's modules are searched.
        below: files that begin with none of these are not read.
        text: the program itself, if it is in its command.
        problem: why they are not known.
    """

    first: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    below: tuple[str, ...] = ("",)
    text: str = ""
    problem: str = ""

    def imported(self, node: ast.AST, path: str) -> list[str]:
        """Return the user's own files that a node of the file at a path imports."""
        return [
            file for file in program_source.imported_files(node, path, list(self.roots)) if file.startswith(self.below)
        ]


def _find_files(argv: list[str], workdir: str, python_path: list[str], path: list[str]) -> _Files:
    program = program_source.find_program(argv)
    assert program is not None
    kind, index = program
    name = argv[index]
    if kind == program_source.MODULE:
        return _find_module(name.split("."), [workdir, *python_path], path)
    if kind == program_source.TEXT:
        return _Files(("",), (workdir, *python_path), text=name)
    file = os.path.realpath(os.path.join(workdir, name))
    if not os.path.isfile(file):
        return _Files(problem=f"{name} is not a file")
    return _Files((file,), (os.path.dirname(file), *python_path))


def _find_module(parts: list[str], own: list[str], path: list[str]) -> _Files:
    """Find a module's files as this interpreter does; without ``path``, only ``own``.

    ``own``: the user's directories. Of an installed package, only its own files are read.
    """
    start = [] if path and getattr(sys.flags, "safe_path", False) else own[:1]
    specs = _find_specs(parts, [*start, *(path or own[1:])], sys.meta_path if path else [PathFinder])
    files = tuple(spec.origin for spec in specs if spec.origin)
    places = specs[0].submodule_search_locations or files if specs else []
    if {os.path.basename(place).partition(".")[0] for place in places} != {parts[0]}:
        return _Files(problem=NO_MODULE)
    roots = tuple(dict.fromkeys(map(os.path.dirname, places)))
    if set(roots) <= set(own):
        return _Files(files, tuple(own))
    return _Files(files, roots, tuple(place if place in files else f"{place}{os.sep}" for place in places))


def _find_specs(parts: list[str], places: Iterable[str] | None, finders: Sequence[Any]) -> list[ModuleSpec]:
    """Return the specs of all that a module executes, packages first; [] if uncertain."""
    specs: list[ModuleSpec] = []
    for part in [*parts, "__main__"]:  # the last is what is executed of a package
        if places is None:
            break
        try:
            specs.append(next(filter(None, (finder.find_spec(part, places) for finder in finders))))
        except Exception:  # there is none, or a hook of the interpreter fails
            return []
        places, finders = specs[-1].submodule_search_locations, [PathFinder]
    is_source = all(isinstance(spec.loader, SourceFileLoader) for spec in specs if spec.origin)
    return specs if is_source and len(specs) >= len(parts) and specs[-1].origin else []


def find_slow_imports(
    argv: list[str], workdir: str, python_path: list[str], path: list[str], environ: Mapping[str, str]
) -> tuple[tuple[str, ...], str]:
    """Return the `SLOW` packages that a program imports first, or () and a reason.

    They are certain, and in its order: those of statements at its top, and of its own modules that it imports there, up
    to where it may do what an import could see; what it does later, it does after the imports in any case.
    ``NAME=VALUE`` among them is a variable that it sets for the next import. Arguments are as in `check_source`;
    without ``path``, a module is searched only in the user's directories.
    """
    files = _find_files(argv, workdir, python_path, path)
    steps: list[str] = []
    seen: set[str] = set()
    try:
        any(_add_slow_imports(files, path, environ, seen, steps) for path in files.first)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return (), "its program cannot be read"
    while steps and "=" in steps[-1]:
        del steps[-1]
    reason = files.problem or f"its program certainly imports none of {', '.join(SLOW)} first"
    return tuple(steps), "" if steps else reason


def _add_slow_imports(files: _Files, path: str, environ: Mapping[str, str], seen: set[str], steps: list[str]) -> bool:
    """Add a file's imports to ``steps`` until it may act; return whether it does.

    What a program does before an import, that import may see: TensorFlow's logger, for one, gets a handler of its own
    unless `logging` has one by then.
    """
    if path in seen or len(seen) > _MOST_FILES:
        return False
    seen.add(path)
    for statement in _parse(files, path).body:
        nodes: list[ast.stmt] = [statement]
        if isinstance(statement, ast.Import):
            nodes = [ast.Import([name]) for name in statement.names]
        for node in nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                own = files.imported(node, path)
                if any(_add_slow_imports(files, file, environ, seen, steps) for file in own):
                    return True
                tops = [] if own else [name.partition(".")[0] for name in _names(node)]
                steps += [top for top in tops if top in SLOW and top not in steps]
            variable = _fixed_variable(node, environ)
            if variable:
                steps.append(variable)
            elif _may_act(files, path, node, environ):
                return True
    return False


def _fixed_variable(statement: ast.stmt, environ: Mapping[str, str]) -> str:
    """Return ``NAME=VALUE`` if a statement only sets a variable for imports, else ""."""
    way, name, value = _use_of_variable(statement.value if isinstance(statement, ast.Expr) else statement)
    text = f"{_text(name)}={environ.get(_text(name), value) if way == 'setdefault' else value}"
    is_read = way in ("set", "setdefault") and value is not None and reason_in_word(_text(name))
    return text if is_read and _SETTABLE.fullmatch(text) else ""


def _may_act(files: _Files, path: str, statement: ast.stmt, environ: Mapping[str, str]) -> bool:
    """Return whether later imports may see what a statement does beside its imports."""
    parts = list(_executed(statement))
    harmless = {id(name) for part in parts for name in _names_without_effect(part, environ)}
    for part in parts:
        is_own_import = part is not statement and files.imported(part, path)
        if is_own_import or _is_act(part) or (id(part) not in harmless and _reason_in_node(part, set())):
            return True
    return False


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement and what it executes: no body of a function or TYPE_CHECKING."""
    parts: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        parts = getattr(node, "decorator_list", ())
    elif isinstance(node, ast.If) and _is_attribute(node.test, "TYPE_CHECKING"):
        parts = node.orelse
    yield node
    for part in parts:
        yield from _executed(part)


def _is_act(node: ast.AST) -> bool:
    """Return whether a part does more than to define names, import or set variables."""
    decorators = getattr(node, "decorator_list", ())
    if not all(isinstance(each, ast.Name) and each.id in _HARMLESS_DECORATORS for each in decorators):
        return True
    if isinstance(node, ast.Call):
        return not (isinstance(node.func, ast.Attribute) and _is_attribute(node.func.value, "environ"))
    if isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
        return not (isinstance(node, ast.Subscript) and _is_attribute(node.value, "environ"))
    return isinstance(node, (ast.With, ast.AsyncWith, ast.Raise, ast.Assert, ast.While, ast.For, ast.AsyncFor))


def _parse(files: _Files, path: str) -> ast.Module:
    """Return the syntax tree of a file of a program.

    Raises:
        OSError, SyntaxError, ValueError, RecursionError, MemoryError: it cannot be read.
    """
    return program_source.parse_source(program_source.read_source(path, _MOST_BYTES) if path else files.text)


def check_function(
    directory: str, roots: list[str], path: list[str], environ: Mapping[str, str]
) -> tuple[str, set[str]]:
    """Return the reason against imports before a function, or "", and its imports.

    ``directory``: the function's (see `tflaunch_worker.function`); ``roots``: those that may contain modules of the
    user. Other arguments are as in `check_source`.
    """
    try:
        about = function.read_file(directory, function.ABOUT)
        missed = [place for place in function.read_searched(directory) if place not in path]
    except (OSError, ValueError):
        return f"{directory} cannot be read", set()
    if missed:
        return f"modules in {missed[0]} could not be found beforehand", set()
    names = {name.partition(".")[0] for name in about["imports"]}
    places = [place for name in about["imports"] for place in program_source.module_places(name.split("."), roots)]
    files = tuple(found for place in places for found in [program_source.module_file(place)] if found)
    return about["reason"] or _reason_in(_Files(files, tuple(roots)), names, environ), names


def _reason_in(files: _Files, names: set[str], environ: Mapping[str, str]) -> str:
    """Return the reason in files and in what they import; add that to ``names``."""
    waiting, seen = list(files.first), set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        if len(seen) > _MOST_FILES:
            return "its program has too many files to look for variables that it sets itself"
        name = os.path.basename(path) or "its text"
        try:
            tree = _parse(files, path)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return f"{name} cannot be read"
        harmless = {id(found) for node in ast.walk(tree) for found in _names_without_effect(node, environ)}
        for node in ast.walk(tree):
            reason = "" if id(node) in harmless else _reason_in_node(node, names)
            if reason:
                return f"{name} {reason}"
            waiting += files.imported(node, path)
    return ""


def _reason_in_node(node: ast.AST, names: set[str]) -> str:
    """Name an act of a syntax node that must come before all imports; "" for none."""
    words: list[str] = []
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        words = [node.value]
    elif isinstance(node, ast.keyword) and node.arg:
        words = [node.arg]
    for word in words:
        if reason_in_word(word):
            return reason_in_word(word)
    for name in _names(node):
        names.add(name.partition(".")[0])
        if reason_in_import(name):
            return reason_in_import(name)
    if _changes_path(node):
        return CHANGES_PATH
    return SETS_VARIABLES if _changes_unknown_variable(node) else ""


def reason_in_word(word: str) -> str:
    """Name an act of a program's text that must come before all imports; "" for none."""
    is_read = _READ_AT_IMPORT.fullmatch(word) and word not in _HARMLESS
    return f"mentions {word}, which is read while modules are imported" if is_read else ""


def reason_in_import(name: str) -> str:
    """Return why a module must be imported before all others, or "" if it need not."""
    is_first = name.partition(".")[0] in _MUST_COME_FIRST
    return f"imports {name}, which has to be imported before all others" if is_first else ""


def _names_without_effect(node: ast.AST, environ: Mapping[str, str]) -> list[ast.AST]:
    """Return names in a node that only reads a variable or keeps its value; else []."""
    way, name, value = _use_of_variable(node)
    before = environ.get(_text(name))
    is_kept = before is not None and (way == "setdefault" or (way == "set" and before == value))
    return [name] if name is not None and (way == "get" or is_kept) else []


def _use_of_variable(node: ast.AST) -> tuple[str, ast.AST | None, str | None]:
    """Return a variable's use ("get", "set", "setdefault"), name and value if known."""
    place: ast.AST | None = None
    name: ast.AST | None = None
    value: ast.AST | None = None
    way = ""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        way, place, name = "get", node.value, _index(node)
    elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript):
        way, place, name, value = "set", node.targets[0].value, _index(node.targets[0]), node.value
    elif isinstance(node, ast.Call) and node.args and _is_attribute(node.func, "getenv"):
        return "get", node.args[0], None
    elif isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Attribute):
        way, place, name, value = node.func.attr, node.func.value, node.args[0], node.args[-1]
    if way not in ("get", "set", "setdefault") or place is None or not _is_attribute(place, "environ"):
        return "", None, None
    return way, name, value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _index(node: ast.Subscript) -> ast.AST:
    index: ast.AST = node.slice
    return index if isinstance(index, ast.Constant) else getattr(index, "value", index)  # Python 3.8: an Index


def _text(node: ast.AST | None) -> str:
    """Return the text of a constant, or "" for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


def _changes_path(node: ast.AST) -> bool:
    """Return whether a node changes ``sys.path`` other than by a harmless append."""
    if isinstance(node, ast.Attribute) and node.attr in ("insert", "reverse", "remove", "pop"):
        return _is_attribute(node.value, "path")
    is_stored = isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load)
    return is_stored and _is_attribute(node.value if isinstance(node, ast.Subscript) else node, "path", "sys")


def _changes_unknown_variable(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and _is_attribute(node.value, "environ"):
        return not isinstance(_index(node), ast.Constant)
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and _is_attribute(node.func.value, "environ"):
        first = node.args[0] if node.args else None
        if node.func.attr == "setdefault":
            return not isinstance(first, ast.Constant)
        if node.func.attr == "update":
            is_known = isinstance(first, ast.Dict) and all(isinstance(key, ast.Constant) for key in first.keys)
            return not (first is None or is_known) or any(keyword.arg is None for keyword in node.keywords)
    return _is_attribute(node.func, "putenv") and not (node.args and isinstance(node.args[0], ast.Constant))


def _is_attribute(node: ast.AST, name: str, of_name: str = "") -> bool:
    """Return whether a node is ``of_name.name``, or any object's ``name`` for ""."""
    if isinstance(node, ast.Attribute) and node.attr == name:
        return not of_name or (isinstance(node.value, ast.Name) and node.value.id == of_name)
    return not of_name and isinstance(node, ast.Name) and node.id == name
