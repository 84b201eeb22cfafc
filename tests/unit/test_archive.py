"""The agent's archive: identical bytes everywhere, and only code that Python 3.8 on a host can run."""

from __future__ import annotations

import ast
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import tflaunch_worker
from tflaunch.transport import bootstrap

pytestmark = pytest.mark.unit

OLDEST = (3, 8)
YOUNGER = {"removeprefix", "removesuffix", "pidfd_open", "waitstatus_to_exitcode", "F_SETPIPE_SZ", "randbytes"}
"""Names that the oldest supported Python lacks and that are tempting to use here."""


def sources() -> dict[str, str]:
    """Return a map from path to source of everything that is sent to hosts."""
    made = bootstrap.build_archive()
    return {**json.loads(made.data), "boot.py": made.boot.decode()}


SOURCES = sources()
OF_THE_AGENT = [path for path in SOURCES if not path.startswith(("training/", "examples/"))]
"""What the host's own Python runs; the rest is for programs, which have TensorFlow and the Python it needs."""


def test_the_same_version_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regardless of where and when it is installed."""
    made = bootstrap.build_archive()
    copy = tmp_path / "tflaunch_worker"
    shutil.copytree(Path(tflaunch_worker.__file__).parent, copy)  # with __pycache__
    for path in copy.rglob("*"):
        os.utime(path, (1e9, 1e9))
    monkeypatch.setattr(tflaunch_worker, "__file__", str(copy / "__init__.py"))
    assert bootstrap.build_archive() == made


@pytest.mark.parametrize("path", OF_THE_AGENT)
def test_a_module_is_python_3_8_and_imports_only_the_standard_library(path: str) -> None:
    """And our own modules; no later attribute is used unless its presence is checked by name first."""
    nodes = list(ast.walk(ast.parse(SOURCES[path], path, feature_version=OLDEST)))
    asked_for = {node.value for node in nodes if isinstance(node, ast.Constant)}
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert not (used & YOUNGER) - asked_for
    imported = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    imported += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in imported} <= {*sys.stdlib_module_names, "tflaunch_worker"}
