"""What features declare of each other is all that there is between them, and what the documents say."""

import ast
import functools
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from support.specs import REPOSITORY
from tflaunch.cli.arguments.launch import flag_of
from tflaunch.feature import features
from tflaunch_worker.feature import features as features_of_agents

SIDES = {"launcher": "tflaunch", "worker": "tflaunch_worker"}
NAMES = sorted({*features(), *features_of_agents()})
NOT_PURE = {"os", "psutil", "random", "selectors", "socket", "subprocess", "threading", "time"}
SHARED = {path.stem for side, name in SIDES.items() for path in (REPOSITORY / side / name / "features").glob("*.py")}
"""Modules that stand beside the features, since several need them."""

ARCHITECTURE = REPOSITORY / "docs" / "architecture.md"


class Module(NamedTuple):
    """A module of a feature, ``path`` relative to the repository."""

    feature: str
    path: str
    tree: ast.Module


@functools.cache
def modules() -> list[Module]:
    """Return the modules of all features, on both sides."""
    found = []
    for side, package in SIDES.items():
        folder = REPOSITORY / side / package / "features"
        for path in sorted(folder.glob("*/**/*.py")):
            feature = path.relative_to(folder).parts[0]
            found.append(Module(feature, str(path.relative_to(REPOSITORY)), ast.parse(path.read_text())))
    return found


def imported(statement: ast.AST) -> Iterator[str]:
    """Yield the modules, and the names in them, that a statement imports."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
    if isinstance(statement, ast.ImportFrom):
        yield from (f"{statement.module}.{alias.name}" for alias in statement.names)


def name_of(module: Module) -> str:
    """Return the name under which a module is imported."""
    return module.path.partition("/")[2].removesuffix(".py").replace("/", ".")


def imported_features(node: ast.AST) -> set[str]:
    """Return the features from which a statement imports, inside of it, too."""
    names = (name for each in ast.walk(node) for name in imported(each))
    found = (re.match(r"tflaunch(?:_worker)?\.features\.(\w+)", name) for name in names)
    return {match[1] for match in found if match} - SHARED


def called_features(module: Module) -> set[str]:
    """Return the features whose halves in agents a module calls."""
    calls = {call: name for name, feature in features_of_agents().items() for call in feature.calls}
    texts = (node.value for node in ast.walk(module.tree) if isinstance(node, ast.Constant))
    return {calls[text] for text in texts if text in calls} if module.path.startswith("launcher") else set()


def asks_for(node: ast.AST, feature: str) -> bool:
    """Return whether a statement has the name of a feature in it, as ``if "records" in features()`` has."""
    return any(isinstance(each, ast.Constant) and each.value == feature for each in ast.walk(node))


def is_only_imported_with(used: str, module: Module, own: list[Module]) -> bool:
    """Return whether each import of a module by others of its feature asks for another feature, or is behind one."""
    places = [
        asks_for(statement, used) or is_only_imported_with(used, other, own)
        for other in own
        for statement in other.tree.body
        if any(f"{name}.".startswith(f"{name_of(module)}.") for each in ast.walk(statement) for name in imported(each))
    ]
    return bool(places) and all(places)


@pytest.mark.parametrize("name", NAMES)
def test_a_feature_touches_only_what_it_declares(name: str) -> None:
    """And all of it: what it needs, or else uses, having asked whether it is there."""
    feature = features()[name]
    own = [module for module in modules() if module.feature == name]
    touched = {each for module in own for each in imported_features(module.tree) | called_features(module)}
    assert touched - {name} == {*feature.needs, *feature.uses}
    for module in own:
        for statement in module.tree.body:
            for used in imported_features(statement) - {name, *feature.needs}:
                assert asks_for(statement, used) or is_only_imported_with(used, module, own), (module.path, used)


def test_the_spine_calls_no_feature_of_an_agent() -> None:
    calls = {call for feature in features_of_agents().values() for call in feature.calls}
    folder = REPOSITORY / "launcher" / "tflaunch"
    for path in folder.rglob("*.py"):
        if "features" not in path.relative_to(folder).parts:
            texts = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
            assert not calls & texts, path


def test_needs_have_no_circles_and_uses_are_no_needs() -> None:
    order: list[str] = []
    while more := [name for name in features() if name not in order and {*features()[name].needs} <= {*order}]:
        order += more
    assert set(order) == set(features())
    assert [name for name, feature in features().items() if {*feature.needs} & {*feature.uses}] == []


def test_a_feature_without_what_it_needs_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that need it."""
    left = {name: feature for name, feature in features().items() if name != "render"}
    monkeypatch.setattr("tflaunch_worker.feature.find_features", lambda *_: dict(left))
    assert set(left) - set(features.__wrapped__()) == {"slurm"}


def test_a_module_that_says_so_is_pure() -> None:
    """It imports neither clock nor process, thread or socket."""
    pure = [module for module in modules() if re.search(r"\bPure\.", ast.get_docstring(module.tree) or "")]
    assert len(pure) > 10
    for module in pure:
        names = {name.partition(".")[0] for node in ast.walk(module.tree) for name in imported(node)}
        assert not names & NOT_PURE, module.path


def table() -> str:
    """Return the table of features in docs/architecture.md."""
    rows = ["| feature | what it does | adds | needs |", "|---|---|---|---|"]
    for name, feature in features().items():
        (text,) = [
            ast.get_docstring(each.tree)
            for each in modules()
            if each.path.endswith(f"tflaunch/features/{name}/__init__.py")
        ]
        does = (text or "").partition("\n")[0].rstrip(".")
        verbs = [f"`{verb}`" for verb, declared in feature.verbs.items() if declared.group]
        adds = [*verbs, *(f"`{flag_of(one)}`" for one in feature.options), *(f'`"{one}"`' for one in feature.fields)]
        needs = [*(f"`{each}`" for each in feature.needs), *(f"`{each}` if it is there" for each in feature.uses)]
        rows.append(f"| `{name}` | {does} | {', '.join(adds)} | {', '.join(needs)} |")
    return re.sub("  +", " ", "\n".join(rows))


def test_the_table_of_features_is_up_to_date() -> None:
    """To update it: TFLAUNCH_WRITE_TABLE=1."""
    text = ARCHITECTURE.read_text()
    written = re.search(r"\| feature \|.*?(?=\n\n)", text, re.DOTALL)
    assert written is not None
    if os.environ.get("TFLAUNCH_WRITE_TABLE"):
        ARCHITECTURE.write_text(text.replace(written[0], table()))
    else:
        assert written[0] == table()


def test_contracts_and_lint_lists_name_no_feature() -> None:
    """Nor do Makefile and settings of tools: a feature is in its folders alone."""
    for path in (REPOSITORY / "pyproject.toml", REPOSITORY / "Makefile"):
        assert not re.findall(r"features[./](?!\*)\w+", path.read_text()), path
