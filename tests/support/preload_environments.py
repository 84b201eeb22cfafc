"""Environments with packages beside TensorFlow, what their tasks do there, and their table in docs/warm_start.md."""

import subprocess
from pathlib import Path
from typing import NamedTuple

import yaml

from support.specs import REPOSITORY

PAGE = REPOSITORY / "docs" / "warm_start.md"
HEAD = "| environment | packages | result |"


class Environment(NamedTuple):
    """Packages to install, modules to preload after TensorFlow, and a program that leaves its ``result``.

    ``refused``: the module that starts threads when it is imported, so that nothing is forked if it is preloaded.
    """

    packages: tuple[str, ...]
    modules: tuple[str, ...]
    use: str
    refused: str = ""


ENVIRONMENTS = {
    name: Environment(**row, packages=(*packages,), modules=(*modules,))
    for name, row in yaml.safe_load((REPOSITORY / "tests" / "training" / "environments.yaml").read_text()).items()
    for packages, modules in [(row.pop("packages"), row.pop("modules"))]
}


def refusal(module: str) -> str:
    """Return what the table says where a module is refused."""
    return f"refused: `{module}`"


def versions(python: Path, name: str) -> str:
    """Return the packages of an environment with their versions, as its interpreter finds them."""
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    packages = ENVIRONMENTS[name].packages
    found = subprocess.run([python, "-c", code, *packages], check=True, capture_output=True, text=True).stdout.split()
    return ", ".join(f"{package} {version}" for package, version in zip(packages, found, strict=True))


def with_row(page: str, name: str, packages: str, result: str) -> str:
    """Return the page with the row of one environment changed, and everything else as it was."""
    lines = page.splitlines()
    start = lines.index(HEAD) + 2
    length = next((n for n, line in enumerate(lines[start:]) if not line.startswith("|")), len(lines) - start)
    rows = {line.split("|")[1].strip(): line for line in lines[start : start + length]}
    rows[name] = f"| {name} | {packages} | {result} |"
    table = [rows[name] for name in ENVIRONMENTS if name in rows]
    return "\n".join([*lines[:start], *table, *lines[start + length :]]) + "\n"
