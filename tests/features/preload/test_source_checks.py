"""Which programs may be forked from a process that has imported modules, as far as their source tells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tflaunch_worker.features.preload import source_checks

pytestmark = pytest.mark.unit


HARMLESS = [
    "import os; os.environ['TF_CONFIG']; os.environ['DATA'] = 'TF_X is a name in a sentence'",
    "import os; os.environ.update({'A': '1'}, B='2'); os.environ.setdefault('C', x)",
    "import sys; sys.path.append('lib'); print(sys.path[0])",
    "from os import path; path = path.join('a'); self.path = 1",
    "import gevents, tensorflow as tf",
    "import os; print(os.environ.get('TPU_NAME'), os.getenv('TF_X'), os.environ['CUDA_VISIBLE_DEVICES'])",
    "'''TF_CPP_MIN_LOG_LEVEL is explained here.'''",
]
DOUBTFUL = [
    ("import os; os.environ['TF_CPP_MIN_LOG_LEVEL'] = '2'", "mentions TF_CPP_MIN_LOG_LEVEL"),
    ("import os; os.environ.setdefault('KERAS_BACKEND', 'jax')", "mentions KERAS_BACKEND"),
    ("import os; os.environ.update(OMP_NUM_THREADS='1')", "mentions OMP_NUM_THREADS"),
    ("import os; os.environ |= {'LD_LIBRARY_PATH': 'x'}", "mentions LD_LIBRARY_PATH"),
    ("import os; os.environ[name] = '1'", "names cannot be known"),
    ("from os import environ\nenviron[f'TF_{x}'] = '1'", "names cannot be known"),
    ("import os; os.environ.update(config)", "names cannot be known"),
    ("import os; os.environ.update(**config)", "names cannot be known"),
    ("import os; os.environ.setdefault(name, '1')", "names cannot be known"),
    ("import os; os.putenv(name, '1')", "names cannot be known"),
    ("import sys; sys.path.insert(0, 'lib')", "sys.path"),
    ("import sys; sys.path[:0] = ['lib']", "sys.path"),
    ("import sys; sys.path[0] = 'lib'", "sys.path"),
    ("from sys import path; path.insert(0, 'lib')", "sys.path"),
    ("from gevent import monkey", "imports gevent"),
    ("def f(:", "cannot be read"),
    ("x = '\0'", "cannot be read"),
]


@pytest.mark.parametrize("text", HARMLESS)
def test_a_harmless_text(text: str, tmp_path: Path) -> None:
    """As a script, as a module, and as text on the command line."""
    for argv in _ways(text, tmp_path):
        assert _reason(argv, str(tmp_path), [], []) == ""


@pytest.mark.parametrize(("text", "reason"), DOUBTFUL)
def test_a_doubtful_text(text: str, reason: str, tmp_path: Path) -> None:
    for argv in _ways(text, tmp_path):
        said = _reason(argv, str(tmp_path), [], [])
        assert reason in said
        assert said.startswith(("prog.py ", "its text "))


KEPT = {"GRPC_FAIL_FAST": "use_caller"}


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [
        ("import os; os.environ['GRPC_FAIL_FAST'] = 'use_caller'", True),
        ("from os import environ\nenviron.setdefault('GRPC_FAIL_FAST', x)", True),
        ("import os; os.environ['GRPC_FAIL_FAST'] = 'true'", False),  # the imported modules have read the old value
    ],
)
def test_a_variable_that_keeps_its_value_is_harmless(text: str, is_kept: bool, tmp_path: Path) -> None:
    """Programs for parameter servers set GRPC_FAIL_FAST to the value that tflaunch sets."""
    for argv in _ways(text, tmp_path):
        assert ("mentions" not in _reason(argv, str(tmp_path), [], [], KEPT)) == is_kept
        assert "mentions" in _reason(argv, str(tmp_path), [], [], {"OTHER": "use_caller"})


def _reason(
    argv: list[str], workdir: str, python_path: list[str], path: list[str], environ: Mapping[str, str] | None = None
) -> str:
    return source_checks.check_source(argv, workdir, python_path, path, environ or {})[0]


def _write(directory: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text.replace("BAD", "x = 'TF_BAD'"))


def _ways(text: str, directory: Path) -> list[list[str]]:
    (directory / "prog.py").write_text(text)
    return [["python", "prog.py"], ["python", "-m", "prog"], ["python", "-c", text]]


@pytest.mark.parametrize(
    ("files", "is_found"),
    [
        ({"prog.py": "import helper", "helper.py": "BAD"}, True),
        ({"prog.py": "import pack.inner", "pack/__init__.py": "BAD", "pack/inner.py": ""}, True),
        ({"prog.py": "from pack import inner", "pack/__init__.py": "", "pack/inner.py": "BAD"}, True),
        ({"prog.py": "import p.a", "p/__init__.py": "", "p/a.py": "from . import b", "p/b.py": "BAD"}, True),
        ({"prog.py": "import p.a", "p/__init__.py": "", "p/a.py": "from ..c import d", "c.py": "BAD"}, True),
        ({"prog.py": "import helper", "lib/helper.py": "BAD"}, True),
        ({"prog.py": "import a", "a.py": "import b", "b.py": "import a"}, False),
        ({"prog.py": "import helper", "other.py": "BAD"}, False),
    ],
)
def test_what_a_program_imports_is_searched_too(files: dict[str, str], is_found: bool, tmp_path: Path) -> None:
    """From its directory and PYTHONPATH, packages before their modules."""
    _write(tmp_path, files)
    for argv in (["python", "prog.py"], ["python", "-m", "prog"], ["python", "-c", "import prog"]):
        said = _reason(argv, str(tmp_path), [str(tmp_path / "lib")], [])
        assert ("mentions TF_BAD" in said) == is_found


def test_packages_installed_in_a_directory_of_pythonpath_are_not_the_users(tmp_path: Path) -> None:
    for name in ("site/numpy-2.0.dist-info", "mine"):
        (tmp_path / name).mkdir(parents=True)
    python_path = f"site:{tmp_path}/mine::missing"
    assert source_checks.own_places(python_path, str(tmp_path)) == [f"{tmp_path}/mine", f"{tmp_path}/missing"]


def test_an_installed_program_is_searched_but_not_all_that_is_installed(tmp_path: Path) -> None:
    """`python -m mine.train`, where `mine` is installed beside tensorflow."""
    _write(tmp_path, {"mine/__init__.py": "", "mine/train.py": "import mine.a, other", "other.py": "x = 'TF_X'"})
    argv = ["python", "-m", "mine.train"]
    assert _reason(argv, "/", [], [str(tmp_path)]) == ""
    (tmp_path / "mine" / "a.py").write_text("x = 'TF_X'")
    assert _reason(argv, "/", [], [str(tmp_path)]) == "a.py mentions TF_X, which is read while modules are imported"
    assert "cannot be found" in _reason(argv, "/", [], [])
