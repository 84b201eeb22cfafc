"""Which Keras a task gets depends on the packages that its interpreter finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tflaunch_worker.inspect.interpreter import legacy_keras

pytestmark = pytest.mark.unit


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
    python.write_text("")
    python.chmod(0o755)
    return python


def test_tf_keras_beside_tensorflow_is_used(tmp_path: Path) -> None:
    """The interpreter is found by its path or on the task's PATH, also through a shell."""
    python = environment(tmp_path, "tensorflow", "tf_keras")
    expected = (True, "tf_keras is installed beside TensorFlow 2.21")
    assert legacy_keras([str(python), "train.py"], {}) == expected
    for argv in (["python", "train.py"], ["sh", "-c", "python train.py"]):
        assert legacy_keras(argv, {"PATH": f"/nowhere:{python.parent}"}) == expected


def test_without_tf_keras_the_variable_would_break_the_program(tmp_path: Path) -> None:
    python = environment(tmp_path, "tensorflow")
    assert legacy_keras([str(python)], {}) == (False, "tf_keras is not installed beside TensorFlow 2.21")


def test_tf_keras_elsewhere_on_the_path_counts(tmp_path: Path) -> None:
    python = environment(tmp_path / "env", "tensorflow")
    (tmp_path / "more" / "tf_keras").mkdir(parents=True)
    (tmp_path / "more" / "tf_keras" / "__init__.py").touch()
    assert legacy_keras([str(python)], {"PYTHONPATH": str(tmp_path / "more")})[0] is True


def test_packages_of_another_python_do_not_count(tmp_path: Path) -> None:
    """A user's own directory often has packages of several Python versions."""
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


def test_an_old_tensorflow_has_keras_2_itself(tmp_path: Path) -> None:
    python = environment(tmp_path, "tensorflow", tensorflow="2.15.1")
    assert legacy_keras([str(python)], {}) == (False, "TensorFlow 2.15 has Keras 2 itself")


@pytest.mark.parametrize("argv", [["python"], ["./train"], ["/no/such/python3"]])
def test_what_is_not_known_is_taken_for_what_most_programs_need(tmp_path: Path, argv: list[str]) -> None:
    """TensorFlow is in none of the usual places."""
    python = environment(tmp_path)
    wanted, why = legacy_keras(argv, {"PATH": str(python.parent), "HOME": str(tmp_path)})
    assert wanted
    assert "not known" in why
