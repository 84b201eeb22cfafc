"""Read one file of a program, and how certainly a task gets to each line.

A place is certain only if no condition, loop or handler stands before it. The function around it must be called in a
place that is certain, too, which is for `program_reader` to find out.
"""

# ruff: noqa: D102, N815 (what ast.NodeVisitor calls has the names of nodes)

import ast
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

NEVER, BY_ROLE, ALWAYS = range(3)
"""How certain it is that a task gets to a place: perhaps it does not, it does if it has some role, or in any case."""

SETS, REMOVES = "sets", "removes"
"""What a program does with TF_CONFIG."""

_ROLE_WORDS = frozenset({"task_type", "type", "role", "job_name", "is_chief", "_is_chief", "is_worker", "is_ps"})
"""Names of a task's role in programs."""

_BESIDE_ROLES = frozenset(
    {"task", "task_id", "task_index", "index", "resolver", "cluster_resolver", "tf_config", "config", "cfg", "args"}
    | {"FLAGS", "flags", "self", "strategy", "get", "lower", "os", "environ"}
)
_ROLES = frozenset({"chief", "worker", "ps", "evaluator", "master", "task", "type", "index", "TF_CONFIG"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_ENDS = ("exit", "_exit", "quit", "SystemExit")

Sized = tuple[ast.expr, "ast.expr | None"]
"""What makes batches, and the size that it is given."""


class Place(NamedTuple):
    """A line, its function ("" for the module), and its certainty in it."""

    line: int
    scope: str
    certainty: int


class Call(NamedTuple):
    """A call: where it is, the full name of what is called, and the node."""

    place: Place
    name: str
    node: ast.Call


class ProgramText(ast.NodeVisitor):
    """What a file contains.

    Attributes:
        path: the file.
        aliases: names, and what they mean with its package.
        defined: functions and classes, and how often each is defined.
        names: the full names of all that it mentions, and texts that look like a name.
        packages: the packages that it imports.
        imports: where it imports something.
        calls: what it calls.
        values: what names are given, by the function in which they are; None for what is not a simple assignment.
        asks_for_chief: whether it does something as the chief only, without another task in a chief's place.
    """

    def __init__(self, path: Path, tree: ast.Module, is_program: bool) -> None:
        self.path, self._is_program = path, is_program
        self.aliases: dict[str, str] = {"tf": "tensorflow"}
        self.defined: dict[str, int] = {}
        self.names: set[str] = set()
        self.packages: set[str] = set()
        self.imports: list[tuple[Place, ast.Import | ast.ImportFrom]] = []
        self.calls: list[Call] = []
        self.values: dict[tuple[str, str], list[ast.expr | None]] = {}
        self._tf_configs: list[ast.Constant] = []
        self._changing: list[tuple[Place, ast.Assign | ast.Delete | ast.Call]] = []
        self._scope, self._certainty = "", ALWAYS
        self._visit_block(tree.body)
        self.asks_for_chief = _asks_for_chief(tree)

    def full_name(self, node: ast.AST) -> str:
        """Return the dotted name of a node, with the package for its alias."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        parts.append(self.aliases.get(node.id, node.id) if isinstance(node, ast.Name) else "")
        return ".".join(reversed(parts))

    def literal(self, node: ast.expr | None, scope: str) -> int | None:
        """Return the value of a whole number, or of a name that gets one once."""
        if isinstance(node, ast.Name):
            given = self._given(scope, node.id)
            node = given[0] if len(given) == 1 else None
        value = node.value if isinstance(node, ast.Constant) else None
        return value if type(value) is int and value > 0 else None

    def _given(self, scope: str, name: str) -> list[ast.expr | None]:
        return self.values.get((scope, name)) or self.values.get(("", name), [])

    def reads_of_tf_config(self) -> list[int]:
        """Return the lines that mention TF_CONFIG other than to change it."""
        changing = {id(key) for _, node in self._changing for key in _changed_keys(node)}
        return [node.lineno for node in self._tf_configs if id(node) not in changing]

    def changes_of_tf_config(self) -> Iterator[tuple[str, Place]]:
        """Yield where TF_CONFIG gets a literal cluster, or is removed."""
        for place, node in self._changing:
            if not isinstance(node, ast.Assign):
                yield REMOVES, place
            elif self._has_cluster(node.value, place.scope, set()):
                yield SETS, place

    def _has_cluster(self, value: ast.expr, scope: str, seen: set[str]) -> bool:
        """Return whether an expression, or the value of a name in it, has a cluster."""
        for node in ast.walk(value):
            if isinstance(node, ast.Constant) and (node.value == "cluster" or '"cluster"' in str(node.value)):
                return True
            if isinstance(node, ast.Name) and node.id not in seen:
                seen.add(node.id)
                given = [each for each in self._given(scope, node.id) if each is not None]
                if any(self._has_cluster(each, scope, seen) for each in given):
                    return True
        return False

    def find_batch(self, call: Call) -> tuple[int, int] | None:
        """Return line and literal size of the batches that a call trains on."""
        keywords = {each.arg: each.value for each in call.node.keywords}
        found: list[Sized] = [(call.node, keywords["batch_size"])] if "batch_size" in keywords else []
        for data in (*call.node.args[:1], *([keywords["x"]] if "x" in keywords else [])):
            found += self._batches_of(data, call.place.scope, set())
        size = self.literal(found[0][1], call.place.scope) if len(found) == 1 else None
        return None if size is None else (found[0][0].lineno, size)

    def _batches_of(self, data: ast.expr, scope: str, seen: set[str]) -> list[Sized]:
        """Return the calls of `batch` in the chain of methods that makes a dataset."""
        found: list[Sized] = []
        while isinstance(data, ast.Call) and isinstance(data.func, ast.Attribute):
            if data.func.attr == "batch":
                sizes = [*data.args[:1], *(each.value for each in data.keywords if each.arg == "batch_size")]
                found.append((data, sizes[0] if sizes else None))
            data = data.func.value
        if isinstance(data, ast.Name) and data.id not in seen:
            seen.add(data.id)
            for given in self._given(scope, data.id):
                found += [(data, None)] if given is None else self._batches_of(given, scope, seen)
        return found

    # ---- syntax nodes

    def _place(self, node: ast.stmt | ast.expr) -> Place:
        return Place(node.lineno, self._scope, self._certainty)

    def _visit_block(self, body: Sequence[ast.stmt], certainty: int = ALWAYS, scope: str | None = None) -> None:
        """Visit statements, each only as certain as those before it let a task get there."""
        before = self._scope, self._certainty
        if scope is not None:
            self._scope, self._certainty = scope, ALWAYS
        self._certainty = min(self._certainty, certainty)
        for node in body:
            self.visit(node)
            self._certainty = min(self._certainty, _certainty_after(node))
        self._scope, self._certainty = before

    def _visit_all(self, nodes: Iterable[ast.AST], certainty: int = ALWAYS) -> None:
        before, self._certainty = self._certainty, min(self._certainty, certainty)
        for node in nodes:
            self.visit(node)
        self._certainty = before

    def _define(self, name: str) -> None:
        self.names.add(name)
        self.defined[name] = self.defined.get(name, 0) + 1

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str = "") -> None:
        self._visit_all([*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)])
        if not name:
            self._define(node.name)
        name = name or node.name
        for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            self.values.setdefault((name, each.arg), []).append(None)
        self._visit_block(node.body, scope=name)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._define(node.name)
        self._visit_all([*node.decorator_list, *node.bases])
        for each in node.body:
            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                self.visit_FunctionDef(each, name=node.name)  # a call of the class calls it
            else:
                self.visit(each)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        certainty = BY_ROLE if _asks_for_role(node.test) else NEVER
        if _is_main_guard(node.test):
            certainty = ALWAYS if self._is_program else NEVER
        self._visit_block(node.body, certainty)
        self._visit_block(node.orelse, min(certainty, BY_ROLE))

    def visit_For(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        self._visit_all([node.test] if isinstance(node, ast.While) else [node.target, node.iter])
        self._visit_block([*node.body, *node.orelse], NEVER)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        self._visit_all(node.items)
        self._visit_block(node.body)

    def visit_Try(self, node: Any) -> None:
        self._visit_block(node.body)
        for handler in node.handlers:
            self._visit_block(handler.body, NEVER)
        self._visit_block(node.orelse, NEVER)
        self._visit_block(node.finalbody)

    def visit_Import(self, node: ast.Import) -> None:
        self.imports.append((self._place(node), node))
        for each in node.names:
            top = each.name.partition(".")[0]
            self.packages.add(top)
            self.aliases[each.asname or top] = each.name if each.asname else top
            self.names.add(each.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.imports.append((self._place(node), node))
        module = node.module or ""
        if not node.level:
            self.packages.add(module.partition(".")[0])
        for each in node.names:
            full = self.aliases[each.asname or each.name] = f"{module}.{each.name}".lstrip(".")
            self.names.add(full)

    def visit_Assign(self, node: ast.Assign) -> None:
        if _changed_keys(node):
            self._changing.append((self._place(node), node))
        self.visit(node.value)
        target = node.targets[0]
        if len(node.targets) > 1 or not isinstance(target, ast.Name):
            self._visit_all(node.targets)
            return
        self.names.add(target.id)
        self.values.setdefault((self._scope, target.id), []).append(node.value)
        full = self.full_name(node.value)
        if isinstance(node.value, ast.Attribute) and full.startswith(("tensorflow.", "keras.")):
            self.aliases.setdefault(target.id, full)

    def visit_Delete(self, node: ast.Delete) -> None:
        if _changed_keys(node):
            self._changing.append((self._place(node), node))
        self._visit_all(node.targets)

    def visit_Call(self, node: ast.Call) -> None:
        name = self.full_name(node.func)
        self.calls.append(Call(self._place(node), name, node))
        if _changed_keys(node):
            self._changing.append((self._place(node), node))
        self.names.add(name)
        if not name or name.startswith("."):
            self.visit(node.func)
        self._visit_all([*node.args, *node.keywords])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.names.add(self.full_name(node))
        if not isinstance(node.value, ast.Name):
            self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        self.names.add(self.full_name(node))
        if not isinstance(node.ctx, ast.Load):
            self.values.setdefault((self._scope, node.id), []).append(None)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value.isidentifier():
            self.names.add(node.value)
            if node.value == "TF_CONFIG":
                self._tf_configs.append(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        self._visit_all(node.values[1:], NEVER)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        self._visit_all([node.body, node.orelse], NEVER)

    def visit_Lambda(self, node: ast.AST) -> None:
        self._visit_all(ast.iter_child_nodes(node), NEVER)

    visit_AsyncFunctionDef = visit_FunctionDef
    visit_AsyncFor = visit_While = visit_For
    visit_AsyncWith = visit_With
    visit_TryStar = visit_Try
    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_match_case = visit_Lambda


def _is_main_guard(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def _asks_for_role(test: ast.expr) -> bool:
    """Return whether a condition depends on the task's role only."""
    names, texts = _names_and_texts(test)
    return bool((names | texts) & _ROLE_WORDS) and names <= _ROLE_WORDS | _BESIDE_ROLES and texts <= _ROLES


def _names_and_texts(test: ast.AST) -> tuple[set[str], set[str]]:
    nodes = list(ast.walk(test))
    names = {str(getattr(node, "id", getattr(node, "attr", ""))) for node in nodes} - {""}
    return names, {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _asks_for_chief(tree: ast.AST) -> bool:
    """Return whether a role is compared with "chief" alone."""
    either = {id(each) for node in ast.walk(tree) if _is_or(node) for each in ast.walk(node)}
    compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and id(node) not in either]
    asked = (_names_and_texts(node) for node in compared if isinstance(node.ops[0], ast.Eq))
    return any("chief" in texts and (names | texts) & _ROLE_WORDS for names, texts in asked)


def _is_or(node: ast.AST) -> bool:
    return isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or)


def _certainty_after(node: ast.stmt) -> int:
    """Return how certainly a task gets past a statement, which may return."""
    ends = (each for each in ast.walk(node) if isinstance(each, ast.Return) or _is_good_end(each))
    if isinstance(node, _DEFINITIONS) or next(ends, None) is None:
        return ALWAYS
    if isinstance(node, ast.If) and _is_main_guard(node.test):
        return ALWAYS
    return BY_ROLE if isinstance(node, ast.If) and _asks_for_role(node.test) else NEVER


def _is_good_end(node: ast.AST) -> bool:
    """Return whether a call ends the program without the code of an error."""
    if not isinstance(node, ast.Call) or getattr(node.func, "attr", getattr(node.func, "id", "")) not in _ENDS:
        return False
    code = node.args[0] if node.args else None
    return not (isinstance(code, ast.Constant) and code.value)


def _changed_keys(node: ast.AST) -> list[ast.expr]:
    """Return the key TF_CONFIG that a node sets in `os.environ` or removes."""
    keys: list[ast.expr] = []
    if isinstance(node, (ast.Assign, ast.Delete)):
        places = [each for each in node.targets if isinstance(each, ast.Subscript)]
        keys = [each.slice for each in places if _is_environ(each.value)]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "pop":
        keys = node.args[:1] if _is_environ(node.func.value) else []
    return [key for key in keys if isinstance(key, ast.Constant) and key.value == "TF_CONFIG"]


def _is_environ(node: ast.expr) -> bool:
    return "environ" in (getattr(node, "attr", ""), getattr(node, "id", ""))
