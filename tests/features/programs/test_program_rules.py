"""What `check` says about programs (programs.yaml): something only where it is certain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.specs import made
from tflaunch.clusterspec import spec_file
from tflaunch.discovery import prepare
from tflaunch.features.programs import program_rules

pytestmark = pytest.mark.unit

MIRRORED = "import tensorflow as tf\nstrategy = tf.distribute.MirroredStrategy()\n"
CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("programs.yaml").read_text())


def written(directory: Path, files: dict[str, str]) -> Path:
    """Write files below a directory, and return it."""
    for name, text in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    return directory


def sentences(directory: Path, **fields: Any) -> list[str]:
    """Return the warnings about the programs of a spec in this directory."""
    spec = made({"cluster": {"worker": 2}, "command": ["python", "main.py"], **fields})
    return [problem.sentence() for problem in program_rules.find_warnings(spec, directory)]


@pytest.fixture(autouse=True)
def _keras_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Keras 3 installed, and nothing else."""
    _install_keras(tmp_path, monkeypatch, "3.15.1")


def _install_keras(directory: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    prefix = directory / f"with-{version}"
    (prefix / "lib" / "python3.11" / "site-packages" / f"keras-{version}.dist-info").mkdir(parents=True)
    monkeypatch.setattr("sys.prefix", str(prefix))
    monkeypatch.setenv("PATH", str(prefix / "bin"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["program"])
def test_what_is_said(case: dict[str, Any], tmp_path: Path) -> None:
    """One sentence each, which begins with file and line."""
    fields = {"cluster": case.get("cluster", {"worker": 2}), **case.get("fields", {})}
    said = sentences(written(tmp_path, case["files"]), **fields)
    expected = case.get("warnings", [])
    assert [part for part, sentence in zip(expected, said, strict=False) if not sentence.startswith(part)] == []
    assert len(said) == len(expected), said


@pytest.mark.parametrize("version", ["2.15.0", "none"])
def test_without_keras_3_nothing_is_said_about_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Keras 2 can do it; where none is found, it may be either."""
    (text,) = {case["files"]["main.py"] for case in CASES if case["program"] == "import keras and fit, mirrored"}
    written(tmp_path, {"main.py": text})
    assert len(sentences(tmp_path)) == 1
    _install_keras(tmp_path, monkeypatch, version)
    assert sentences(tmp_path) == []


@pytest.mark.parametrize("fields", [{"workdir": "code"}, {"hosts": {"*": {"workdir": "code"}}}])
def test_programs_are_looked_for_in_the_working_directory(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Relative to the spec, as tasks find them."""
    written(tmp_path, {"code/main.py": MIRRORED})
    assert sentences(tmp_path) == []
    (said,) = sentences(tmp_path, **fields)
    assert said.startswith("code/main.py:2: MirroredStrategy")
    written(tmp_path, {"code/pack.py": "from main import *\n"})
    (said,) = sentences(tmp_path, **fields, command=["nice", "-n", "1", "python3", "-u", "-m", "pack"])
    assert said.startswith("code/main.py:2: MirroredStrategy")


def test_a_link_to_a_program_imports_what_is_beside_the_program(tmp_path: Path) -> None:
    """As Python does."""
    written(tmp_path, {"code/train.py": "import build\n", "code/build.py": MIRRORED})
    (tmp_path / "main.py").symlink_to("code/train.py")
    (said,) = sentences(tmp_path)
    assert said.startswith("code/build.py:2: MirroredStrategy")


def test_the_plan_says_why_its_tasks_train_alone(tmp_path: Path) -> None:
    """For the end of the run, whoever starts it; not if they do so on purpose."""
    written(tmp_path, {"main.py": MIRRORED, "spec.json": '{"cluster": {"worker": 2}, "command": "python main.py"}'})
    file = spec_file.read_spec_file(tmp_path / "spec.json")
    plan, _ = prepare.plan_spec(file)
    assert plan.trains_alone.startswith("main.py:2: MirroredStrategy")
    plan, _ = prepare.plan_spec(file, ["strategy=none"])
    assert plan.trains_alone == ""


def test_a_program_that_gets_its_fault_later_is_warned_of(tmp_path: Path) -> None:
    """Whatever was said of the same spec before."""
    written(tmp_path, {"main.py": "", "spec.json": '{"cluster": {"worker": 2}, "command": "python main.py"}'})
    file = spec_file.read_spec_file(tmp_path / "spec.json")
    assert prepare.plan_spec(file)[1] == []
    written(tmp_path, {"main.py": MIRRORED})
    assert [problem.where for problem in prepare.plan_spec(file)[1]] == ["main.py:2"]
