"""Which programs may be forked from a process that has imported modules, as far as their source tells."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tflaunch_worker.features.preload import source_checks

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
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
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


FIRST: list[tuple[dict[str, str], str]] = [
    ({"prog.py": "'''text'''\nimport os, tensorflow as tf"}, "tensorflow"),
    ({"prog.py": "from tensorflow.keras import layers\nimport tensorflow"}, "tensorflow"),
    ({"prog.py": "import torch\nimport numpy\nfrom keras import layers"}, "torch,keras"),
    ({"prog.py": "import jax.numpy as jnp; import tensorflow"}, "jax,tensorflow"),
    ({"prog.py": "import helper", "helper.py": "import tensorflow"}, "tensorflow"),
    ({"prog.py": "import torch, p.a", "p/__init__.py": "import keras", "p/a.py": "import jax"}, "torch,keras,jax"),
    ({"prog.py": "import p.a", "p/__init__.py": "", "p/a.py": "from . import b", "p/b.py": "import jax"}, "jax"),
    ({"prog.py": "import helper", "lib/helper.py": "import tensorflow"}, "tensorflow"),
    ({"prog.py": "import a\nimport tensorflow", "a.py": "import b", "b.py": "import a"}, "tensorflow"),
    ({"prog.py": "import helper", "other.py": "import tensorflow"}, ""),
    ({"prog.py": "import tensorflow", "tensorflow.py": "import torch"}, "torch"),
    ({"prog.py": "import tensorflow_datasets, torchvision, numpy"}, ""),
    ({"prog.py": "def main():\n    import tensorflow"}, ""),
    ({"prog.py": "try:\n    import tensorflow\nexcept ImportError:\n    pass"}, ""),
    ({"prog.py": "import sys\nif sys.argv:\n    import tensorflow"}, ""),
    ({"prog.py": "if __name__ == '__main__':\n    import tensorflow"}, ""),
    ({"prog.py": "exec('import tensorflow')"}, ""),
    ({"prog.py": "import logging\nlogging.basicConfig()\nimport tensorflow"}, ""),
    ({"prog.py": "import warnings\nif 1:\n    warnings.simplefilter('ignore')\nimport tensorflow"}, ""),
    ({"prog.py": "import sys\nsys.stdout = None\nimport tensorflow"}, ""),
    ({"prog.py": "import helper, tensorflow", "helper.py": "import random\nrandom.seed(1)"}, ""),
    ({"prog.py": "import tensorflow as tf\ntf.config.set_soft_device_placement(False)\nimport torch"}, "tensorflow"),
    ({"prog.py": "A = 1\nclass B:\n    C = 2\ndef f():\n    g()\nimport os, jax\nf()\nimport keras"}, "jax"),
    ({"prog.py": "import os\nos.environ['A'] = '1'\nos.environ.setdefault('B', '2')\nimport jax"}, "jax"),
    ({"prog.py": "try:\n    import json5\nexcept ImportError:\n    json5 = None\nimport torch"}, "torch"),
    ({"prog.py": "import tensorflow\ndef f(:"}, ""),
    ({"prog.py": "import tensorflow", "__init__.py": "import torch"}, "tensorflow"),
    ({"prog.py": "import helper, tensorflow", "helper.py": "import torch", "helper/__init__.py": ""}, "tensorflow"),
    ({"prog.py": "class A:\n    @property\n    def b(self):\n        c()\nimport tensorflow"}, "tensorflow"),
    ({"prog.py": "@register\nclass A:\n    pass\nimport tensorflow"}, ""),
    ({"prog.py": "if TYPE_CHECKING:\n    import helper\nimport jax", "helper.py": "f()"}, "jax"),
    ({"prog.py": "try:\n    import helper\nexcept E:\n    pass\nimport jax", "helper.py": "f()"}, ""),
    ({"prog.py": "def f():\n    os.environ['TF_X'] = '1'\nimport tensorflow"}, "tensorflow"),
]
SET_FIRST = [
    ("os.environ['TF_CPP_MIN_LOG_LEVEL'] = '2'", "TF_CPP_MIN_LOG_LEVEL=2,tensorflow"),
    ("os.environ.setdefault('KERAS_BACKEND', 'jax')", "KERAS_BACKEND=jax,tensorflow"),
    ("os.environ.setdefault('GRPC_FAIL_FAST', 'x')", "GRPC_FAIL_FAST=use_caller,tensorflow"),
    ("os.environ['TF_A'] = '1'; import torch; os.environ['TF_A'] = '2'", "TF_A=1,torch,TF_A=2,tensorflow"),
    ("os.environ['TF_CONFIG'] = '{}'; os.environ['DATA'] = 'x'", "tensorflow"),
    ("os.environ['TF_A'] = '1,2'", ""),
    ("os.environ['TF_A'] = os.environ['TF_B'] = '1'", ""),
    ("os.environ['TF_A'] = str(1)", ""),
    ("os.environ['OMP_NUM_THREADS'] = '1'", ""),
    ("if x:\n    os.environ['TF_A'] = '1'", ""),
]


@pytest.mark.parametrize(("files", "first"), FIRST)
def test_what_a_program_certainly_imports_first(files: dict[str, str], first: str, tmp_path: Path) -> None:
    """In its own order, from statements at the top, also of its own modules."""
    _write(tmp_path, files)
    for argv in (["python", "prog.py"], ["python", "-m", "prog"], ["python", "-c", files["prog.py"]]):
        found, _ = source_checks.find_slow_imports(argv, str(tmp_path), [str(tmp_path / "lib")], [], {})
        assert ",".join(found) == first, argv


@pytest.mark.parametrize("text", [text for text, reason in DOUBTFUL[2:] if "read" not in reason])
def test_what_an_import_may_see_matters_only_before_it(text: str, tmp_path: Path) -> None:
    """What follows an import does so in both ways."""
    for argv in _ways(f"{text}\nimport tensorflow", tmp_path):
        assert source_checks.find_slow_imports(argv, str(tmp_path), [], [], {})[0] == ()
    for argv in _ways(f"import tensorflow\n{text}\nimport torch", tmp_path):
        assert source_checks.find_slow_imports(argv, str(tmp_path), [], [], {}) == (("tensorflow",), "")


@pytest.mark.parametrize(("text", "steps"), SET_FIRST)
def test_variables_that_a_program_sets_for_its_imports(text: str, steps: str, tmp_path: Path) -> None:
    """Their values are those that an import would find."""
    for argv in _ways(f"import os\n{text}\nimport tensorflow\nos.environ['TF_Z'] = '1'", tmp_path):
        assert ",".join(source_checks.find_slow_imports(argv, str(tmp_path), [], [], KEPT)[0]) == steps


INSTALLED: list[tuple[dict[str, str], str, str]] = [
    ({"mine.py": "import jax"}, "mine", "jax"),
    ({"mine/__init__.py": "import jax", "mine/run.py": "import torch"}, "mine.run", "jax,torch"),
    ({"mine/__init__.py": "", "mine/run.py": "from . import data", "mine/data.py": "import jax"}, "mine.run", "jax"),
    ({"mine/__init__.py": "import torch", "mine/__main__.py": "import mine.a", "mine/a.py": "f()"}, "mine", "torch"),
    ({"mine/run.py": "from mine import data", "mine/data.py": "import jax"}, "mine.run", "jax"),
    ({"mine/a/b/run.py": "from mine.c import d", "mine/c/d.py": "import jax"}, "mine.a.b.run", "jax"),
    ({"mine/__init__.py": "f()", "mine/run.py": "import jax"}, "mine.run", ""),
    ({"mine/__init__.py": "import other", "other.py": "import torch", "mine/__main__.py": "import jax"}, "mine", "jax"),
    ({"mine.py": "import torch", "mine/__init__.py": "", "mine/__main__.py": "import jax"}, "mine", "jax"),
    ({"mine.py": "import torch", "mine/run.py": "import jax"}, "mine", "torch"),
    ({"mine/__init__.py": "import jax"}, "mine", ""),
    ({"mine/__init__.py": "", "mine/run.so": ""}, "mine.run", ""),
    ({"mine.py": "import jax"}, "mine.run", ""),
]


@pytest.mark.parametrize(("files", "name", "first"), INSTALLED)
def test_an_installed_program_is_found_as_by_its_interpreter(
    files: dict[str, str], name: str, first: str, tmp_path: Path
) -> None:
    """Only with its search path; else what is beside it is taken for the user's own."""
    _write(tmp_path, files)
    argv = ["python", "-m", name]
    assert source_checks.find_slow_imports(argv, "/", [], [], {}) == ((), source_checks.NO_MODULE)
    found, reason = source_checks.find_slow_imports(argv, "/", [], [str(tmp_path)], {})
    assert ",".join(found) == first, reason


def test_a_program_by_an_import_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As packages that are installed as editable have; one whose directory has another name is not read."""
    _write(tmp_path, {"mine/__init__.py": "", "mine/train.py": "import mine.data", "mine/data.py": "import jax"})
    names = {"mine": tmp_path / "mine", "other": tmp_path / "mine"}

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: object) -> object:
            init = names[name] / "__init__.py"
            return importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(names[name])])

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    for name, found in (("mine", ("jax",)), ("other", ())):
        argv = ["python", "-m", f"{name}.train"]
        assert source_checks.find_slow_imports(argv, "/", [], ["/nowhere"], {})[0] == found


def test_no_file_that_would_block_is_read(tmp_path: Path) -> None:
    for name in ("pipe.py", "helper.py"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "prog.py").write_text("import helper, tensorflow")
    for argv in (["python", "prog.py"], ["python", "-m", "pipe"], ["python", "pipe.py"]):
        assert source_checks.find_slow_imports(argv, str(tmp_path), [], [], {})[0] in ((), ("tensorflow",))
