"""What the host adds to a plan: its variables, shares, Python and Keras; and the archive of code that it gets."""

import ast
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import tflaunch_worker
from tflaunch.features import bootstrap
from tflaunch_worker import host_vars, procfs
from tflaunch_worker.host_vars import UnknownValueError, expand, expand_path
from tflaunch_worker.inspect.interpreter import legacy_keras

KNOWN = {"SCRATCH": "/fast", "TFLAUNCH_CORES": "7", "GPUS": "3, GPU-8a,7"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain ${SCRATCH}", "plain ${SCRATCH}"),
        ("${host:SCRATCH}/data:${host:SCRATCH}", "/fast/data:/fast"),
        ("${host:TFLAUNCH_CORES/2}", "3"),
        ("${host:TFLAUNCH_CORES/8}", "1"),
        ("${host:TFLAUNCH_CORES/0}", "${host:TFLAUNCH_CORES/0}"),
        ("${host:GPUS[1:3]}", "GPU-8a,7"),
        ("${host:GPUS[1:1]}", ""),
        ("${host:GPUS[1]}", "${host:GPUS[1]}"),
        ("$${host:SCRATCH} $$${host:GPUS[0:1]}", "${host:SCRATCH} $${host:GPUS[0:1]}"),
    ],
)
def test_references_are_replaced(text: str, expected: str) -> None:
    """A share is rounded down, and at least 1."""
    assert expand(text, KNOWN) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${host:NO}", "'NO' is not set"),
        ("${host:SCRATCH/2}", "is not a number"),
        ("${host:GPUS[2:4]}", "has 3 entries on this host, and 4 are wanted"),
    ],
)
def test_what_the_host_does_not_have_is_said(text: str, said: str) -> None:
    with pytest.raises(UnknownValueError, match=said):
        expand(text, KNOWN)


def test_a_task_has_the_home_and_the_login_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is expanded only at the start of a path. What another task was told is not inherited."""
    assert expand_path("~/x", KNOWN) == os.path.expanduser("~/x")
    assert expand_path("a~/x", KNOWN) == "a~/x"
    monkeypatch.setenv("USER", "ann")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/theirs")
    env = host_vars.bare_environment("/opt/none/python3")
    assert (env["USER"], env["LANG"]) == ("ann", "C.UTF-8")
    assert env["PATH"] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert set(env) <= {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG"}
    environ = {"TFLAUNCH_RUN": "r", "TFLAUNCH_SET": "X", "TFLAUNCH_HOME": "/h", "LD_LIBRARY_PATH": "/l"}
    assert host_vars.inherited(environ) == {"TFLAUNCH_HOME": "/h", "LD_LIBRARY_PATH": "/l"}


def test_python_is_the_one_that_runs_the_agent(tmp_path: Path) -> None:
    """Its directory comes first on PATH, unless `python` and `python3` are found there already."""
    for name in ("ours/python3", "ours/python", "other/python3"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch(0o755)
    directory, other = f"{tmp_path}/ours", f"{tmp_path}/other"
    ours = f"{directory}/python3"
    assert host_vars.with_python_first(f"/none:{other}", ours) == f"{directory}:/none:{other}"
    assert host_vars.with_python_first(f"{other}:{directory}", ours) == f"{directory}:{other}:{directory}"
    assert host_vars.with_python_first(f"/none:{directory}:{other}", ours) == f"/none:{directory}:{other}"
    assert host_vars.with_python_first("/none", "") == "/none"


def test_cores_are_those_that_this_process_may_use() -> None:
    """The affinity counts, not the number of cores of the machine."""
    before = os.sched_getaffinity(0)
    assert 1 <= procfs.usable_cores() <= len(before)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert procfs.usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def environment(root: Path, *packages: str, tensorflow: str = "2.21.0") -> Path:
    """Create a fake virtual environment with these packages, and return its interpreter."""
    site = root / "lib" / "python3.11" / "site-packages"
    for package in packages:
        (site / package).mkdir(parents=True)
        (site / package / "__init__.py").touch()
    if "tensorflow" in packages:
        (site / f"tensorflow-{tensorflow}.dist-info").mkdir()
        (site / "tensorflow_datasets-4.9.dist-info").mkdir()
    (root / "bin").mkdir(parents=True)
    (root / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    python = root / "bin" / "python"
    python.touch(0o755)
    return python


def test_tf_keras_beside_tensorflow_is_used(tmp_path: Path) -> None:
    """The interpreter is found by its path or on the task's PATH, also through a shell.

    Without tf_keras, the variable would break the program; an old TensorFlow would look for it.
    """
    both = environment(tmp_path / "both", "tensorflow", "tf_keras")
    on_path = {"PATH": f"/nowhere:{both.parent}"}
    for argv, env in (([str(both), "a.py"], {}), (["python", "a.py"], on_path), (["sh", "-c", "python a.py"], on_path)):
        assert legacy_keras(argv, env) == (True, "tf_keras is installed beside TensorFlow 2.21")
    python = environment(tmp_path / "new", "tensorflow")
    assert legacy_keras([str(python)], {}) == (False, "tf_keras is not installed beside TensorFlow 2.21")
    (tmp_path / "more" / "tf_keras").mkdir(parents=True)
    (tmp_path / "more" / "tf_keras" / "__init__.py").touch()
    assert legacy_keras([str(python)], {"PYTHONPATH": str(tmp_path / "more")})[0] is True
    old = environment(tmp_path / "old", "tensorflow", tensorflow="2.15.1")
    assert legacy_keras([str(old)], {}) == (False, "TensorFlow 2.15 has Keras 2 itself")


def test_packages_of_another_python_do_not_count(tmp_path: Path) -> None:
    """A user's own directory often has packages of several versions."""
    python = environment(tmp_path, "tensorflow", "tf_keras")
    other = tmp_path / "lib" / "python3.10" / "site-packages"
    (other / "tensorflow").mkdir(parents=True)
    (other / "tensorflow" / "__init__.py").touch()
    (other / "tensorflow-2.12.0.dist-info").mkdir()
    (tmp_path / "pyvenv.cfg").write_text("version = 3.11.7\n")
    assert legacy_keras([str(python)], {}) == (True, "tf_keras is installed beside TensorFlow 2.21")
    python.rename(python.with_name("python3.10"))
    python.symlink_to("python3.10")
    assert legacy_keras([str(python)], {}) == (False, "TensorFlow 2.12 has Keras 2 itself")


def test_what_is_not_known_is_taken_for_what_most_programs_need(tmp_path: Path) -> None:
    """TensorFlow is in none of the usual places."""
    python = environment(tmp_path)
    for program in ("python", "./train", "/no/such/python3"):
        wanted, why = legacy_keras([program], {"PATH": str(python.parent), "HOME": str(tmp_path)})
        assert (wanted, "not known" in why) == (True, True)


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
