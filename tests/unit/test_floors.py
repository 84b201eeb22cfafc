"""The house: a module imports only what stands below it, as docs/architecture.md says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
SOURCES = {"tflaunch": ROOT / "launcher" / "tflaunch", "tflaunch_worker": ROOT / "worker" / "tflaunch_worker"}
FLOOR = re.compile(r"^\| (\d) \| (.+?) \|", re.MULTILINE)
PACKAGE = re.compile(r"^\| `([a-z]+)/` \|", re.MULTILINE)
FORBIDDEN_IN_THOUGHT = {"os", "time", "threading", "socket", "subprocess", "click", "paramiko", "selectors", "random"}
THOUGHT = 2


def floors() -> dict[str, tuple[int, int]]:
    """Return module to (floor, place on it): what stands further left may import what stands further right."""
    table = (ROOT / "docs" / "architecture.md").read_text()
    return {
        name: (int(number), -place)
        for number, names in FLOOR.findall(table)
        for place, name in enumerate(re.findall(r"`([a-z_.]+)`", names))
    }


def modules() -> dict[str, Path]:
    """Return module to its file: packages by their own name, training programs left out."""
    found = {}
    for package, folder in SOURCES.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            if parts[0] in ("training", "examples"):
                continue
            inner = [part for part in parts if part != "__init__"]
            name = ".".join(inner) if package == "tflaunch" else ".".join(["worker", *inner])
            if name:
                found[name] = path
    return found


def imports(path: Path) -> list[str]:
    """Return what a file imports, by absolute name; an imported module of ours by its own name."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def known_module(name: str, known: dict[str, tuple[int, int]]) -> str | None:
    """Return the module of ours that an imported name is or is in."""
    if name.startswith("tflaunch_worker"):
        short = "worker" + name.removeprefix("tflaunch_worker")
    elif name.startswith("tflaunch."):
        short = name.removeprefix("tflaunch.")
    else:
        return None
    while short and short not in known:
        short = short.rpartition(".")[0]
    return short or None


def test_every_module_stands_on_a_floor() -> None:
    """No module is missing in docs/architecture.md, and none there is gone."""
    assert set(floors()) == set(modules()) - {"worker"}


def test_no_module_imports_upwards() -> None:
    """Data and knowledge flow one way."""
    known = floors()
    for module, path in modules().items():
        for name in imports(path):
            target = known_module(name, known)
            if target is not None and target != module and module in known:
                assert known[target] < known[module], f"{module} imports {target}, which does not stand below it"


def test_no_package_imports_upwards() -> None:
    """Subjects build on each other in one order, and all are in it."""
    packages = PACKAGE.findall((ROOT / "docs" / "architecture.md").read_text())
    known = floors()
    found = {module.partition(".")[0] for module in known if "." in module} - {"worker"}
    assert set(packages) == found
    for module, path in modules().items():
        package = module.partition(".")[0]
        for name in imports(path) if package in packages else ():
            target = (known_module(name, known) or "").partition(".")[0]
            if target in packages:
                assert packages.index(package) <= packages.index(target), f"{module} imports {name}, of {target}/"


def test_thought_touches_nothing() -> None:
    """Words and thought are pure: nothing there can read a clock or start a process."""
    for module, (floor, _) in floors().items():
        if 1 <= floor <= THOUGHT:
            touched = {name.partition(".")[0] for name in imports(modules()[module])} & FORBIDDEN_IN_THOUGHT
            assert not touched, f"{module} imports {touched}"
