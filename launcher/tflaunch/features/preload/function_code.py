"""Find what a function imports, and reasons in it not to import modules before it.

What `source_checks` finds in the source of a program is found here in the bytecode of functions and in their pickle,
because that is what tasks execute: the source may be missing, or edited since.
"""

import dis
import importlib.util
import pickletools
import sys
from collections.abc import Collection, Iterator, Sequence
from types import CodeType, FunctionType

import cloudpickle

from tflaunch_worker.features.preload import source_checks

_MOST_OPERATIONS = 500_000  # of the pickler, which take 0.2 s to look at
_SKIPPED = ("CACHE", "COPY", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL")
_READS = ("get", "items", "keys", "copy", "values")
_SETS = ("pop", "setdefault")
_APPENDS = ("append", "extend")
_STORES = ("DELETE_SUBSCR", "STORE_SLICE", "STORE_SUBSCR")
_REORDERS = ("insert", "pop", "remove", "reverse")


def describe(name: str, functions: Sequence[FunctionType], data: bytes) -> dict[str, object]:
    """Return ``imports``, and a ``reason`` against them, as `TaskStarter` does."""
    texts = _texts(data)
    imports = sorted(_find_imports(functions, texts or ()))
    reason = _reason_against(functions, texts, imports)
    return {"imports": imports, "reason": reason and f"{name} {reason}"}


def _reason_against(functions: Sequence[FunctionType], texts: Collection[str] | None, imports: Sequence[str]) -> str:
    """Return the reason against imports before the functions are called; "" for none."""
    if not functions:
        return "is part of a package, so what it does first is not known beforehand"
    if texts is None:
        return "has too many objects in its arguments to look for names of variables there"
    reasons = [source_checks.reason_in_word(text) for text in sorted(texts)]
    reasons += [source_checks.reason_in_import(name) for name in imports]
    reasons += [_reason_in_code(code) for function in functions for code in _codes(function.__code__)]
    return next(filter(None, reasons), "")


def _find_imports(functions: Sequence[FunctionType], texts: Collection[str]) -> set[str]:
    """Return the modules that functions import or that their pickle may refer to."""
    # What is pickled by value keeps the name of its module, but no task imports that.
    found = sys.modules.keys() & texts
    found -= {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    for function in functions:
        package = function.__globals__.get("__package__") or ""
        for code in _codes(function.__code__):
            found.update(_imported(code, package))
    return found


def _imported(code: CodeType, package: str) -> Iterator[str]:
    """Yield the imports of a code's statements; ``from a import b`` may import a.b."""
    instructions = list(dis.get_instructions(code))
    for index, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME":
            level, names = (before.argval for before in instructions[index - 2 : index])
            try:
                name = importlib.util.resolve_name("." * level + instruction.argval, package)
            except ImportError:
                continue  # the statement will fail
            yield name
            yield from (f"{name}.{part}" for part in names or ())


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code and those of the functions that it defines."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _texts(data: bytes) -> set[str] | None:
    """Return all texts in a pickle, those of its code too; None if there are too many."""
    found = set()
    for count, (_, value, _) in enumerate(pickletools.genops(data)):
        if count == _MOST_OPERATIONS:
            return None
        if isinstance(value, str):
            found.add(value)
    return found


def _reason_in_code(code: CodeType) -> str:
    """Name an act of a code that must come before all imports; "" for none."""
    instructions = [known for known in dis.get_instructions(code) if known.opname not in _SKIPPED]
    stores_items = any(known.opname in _STORES for known in instructions)
    for index, instruction in enumerate(instructions):
        before = instructions[index - 1].argval if index else None
        after = instructions[index + 1 : index + 3]
        match instruction.argval:
            case "putenv":
                return source_checks.SETS_VARIABLES
            case "environ" if not instruction.opname.startswith("STORE") and not _is_harmless(after):
                return source_checks.SETS_VARIABLES
            case "path" if after[0].argval in _REORDERS:
                return source_checks.CHANGES_PATH
            case "path" if before == "sys" and stores_items and after[0].argval not in _APPENDS:
                return source_checks.CHANGES_PATH
            case "path" if instruction.opname == "STORE_ATTR" and "sys" in (known.argval for known in instructions):
                return source_checks.CHANGES_PATH
    return ""


def _is_harmless(after: Sequence[dis.Instruction]) -> bool:
    """Return whether code after ``environ`` reads or imports it, or sets a fixed name."""
    first, second = after[0], after[-1]
    if first.opname == "CONTAINS_OP" or first.argval in (*_READS, "environ"):
        return True
    return (second if first.argval in _SETS else first).opname == "LOAD_CONST"
