"""What `check` says about programs (programs.yaml) and their commands: something only where it is certain."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.specs import REPOSITORY, SMALLEST_LOCAL, made
from tflaunch.clusterspec import spec_file
from tflaunch.discovery import prepare
from tflaunch.features.programs import program_rules
from tflaunch.features.programs.program_reader import Program, find_file, read_program

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
    return [problem.sentence() for problem in program_rules.find_problems(spec, directory)]


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
    fields = {"cluster": case.get("cluster", {"worker": 2}), **case.get("fields", {})}
    said = sentences(written(tmp_path, case["files"]), **fields)
    expected = case.get("warnings", [])
    assert [part for part, sentence in zip(expected, said, strict=False) if not sentence.startswith(part)] == []
    assert len(said) == len(expected), said


@pytest.mark.parametrize("version", ["2.15.0", "none"])
def test_without_keras_3_nothing_is_said_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Keras 2 can do it; where none is found, it may be either."""
    (text,) = {case["files"]["main.py"] for case in CASES if case["program"] == "import keras and fit, mirrored"}
    written(tmp_path, {"main.py": text})
    assert len(sentences(tmp_path)) == 1
    _install_keras(tmp_path, monkeypatch, version)
    assert sentences(tmp_path) == []


@pytest.mark.parametrize("fields", [{"workdir": "code"}, {"hosts": {"*": {"workdir": "code"}}}])
def test_programs_are_looked_for_in_the_working_directory(tmp_path: Path, fields: dict[str, Any]) -> None:
    written(tmp_path, {"code/main.py": MIRRORED})
    assert sentences(tmp_path) == []
    (said,) = sentences(tmp_path, **fields)
    assert said.startswith("code/main.py:2: MirroredStrategy")
    written(tmp_path, {"code/pack.py": "from main import *\n"})
    (said,) = sentences(tmp_path, **fields, command=["nice", "-n", "1", "python3", "-u", "-m", "pack"])
    assert said.startswith("code/main.py:2: MirroredStrategy")
    (tmp_path / "main.py").symlink_to("code/pack.py")  # what is beside the program itself is imported
    (said,) = sentences(tmp_path)
    assert said.startswith("code/main.py:2: MirroredStrategy")


def test_the_plan_says_why_its_tasks_train_alone(tmp_path: Path) -> None:
    """For the end of the run, whoever starts it; not if they do so on purpose."""
    written(tmp_path, {"main.py": MIRRORED, "spec.json": '{"cluster": {"worker": 2}, "command": "python main.py"}'})
    file = spec_file.read_spec_file(tmp_path / "spec.json")
    assert prepare.plan_spec(file)[0].trains_alone.startswith("main.py:2: MirroredStrategy")
    assert [problem.where for problem in prepare.plan_spec(file)[1]] == ["main.py:2"]
    assert prepare.plan_spec(file, ["strategy=none"])[0].trains_alone == ""
    written(tmp_path, {"main.py": ""})
    assert prepare.plan_spec(file)[1] == [], "it is read each time"


def read(directory: Path, text: str | bytes) -> Program:
    """Return what a program with this text uses."""
    path = directory / "main.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_program(path, directory)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = (\n", "line 1: '(' was never closed"),
        ("import os\nprint 'Python 2'\n", "line 2: Missing parentheses"),
        ("x = '\0'", ""),
        (b"name = '\xe4'\n", ""),
        ("x = " + "+".join(["1"] * 5_000), "RecursionError"),
        ("x = " + "(" * 300 + ")" * 300, ""),
        ("#" * (3 << 20), "it is too large"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, text: str | bytes, problem: str) -> None:
    found = read(tmp_path, text)
    assert found == Program(tmp_path / "main.py", found.problem)
    assert problem in found.problem
    assert found.problem


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo", "device", "loop"])
def test_what_is_not_a_file(tmp_path: Path, kind: str) -> None:
    """It is not waited for; a module of such a kind is as if it were missing."""
    path = tmp_path / "other.py"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind != "missing":
        path.symlink_to("/dev/zero" if kind == "device" else path.name)
    assert read_program(path, tmp_path).problem
    assert find_file(["python", "other.py"], tmp_path) is None
    assert [use.name for use in read(tmp_path, f"import other\n{MIRRORED}").strategies] == ["MirroredStrategy"]


@pytest.mark.filterwarnings("error")
def test_other_encodings_and_a_warning_about_syntax(tmp_path: Path) -> None:
    assert read(tmp_path, "x = '\\d'\n" + MIRRORED).strategies
    assert read(tmp_path, b"# coding: latin-1\nname = '\xe4'\n" + MIRRORED.encode()).strategies
    assert read(tmp_path, b"\xef\xbb\xbf" + MIRRORED.replace("\n", "\r\n").encode()).strategies


def test_many_modules_are_read_up_to_a_limit(tmp_path: Path) -> None:
    """Also those that import each other; what is left out is not taken for read."""
    for number in range(300):
        (tmp_path / f"m{number}.py").write_text(f"import m{(number + 1) % 300}\nimport m{number // 2}\n")
    assert not read(tmp_path, f"import m0\n{MIRRORED}").is_complete
    assert read(tmp_path, MIRRORED).is_complete


def test_our_own_programs_are_read(tmp_path: Path) -> None:
    """All of them, and nothing certain is said of those that choose their strategy by the plan."""
    for path in (REPOSITORY / "worker" / "tflaunch_worker" / "examples").glob("*.py"):
        assert not read_program(path, path.parent).problem


# ---- commands in shell syntax, which no shell reads


@pytest.mark.parametrize(
    ("command", "word", "remedy"),
    [
        ("python train.py > log.txt", ">", '["sh", "-c", "python train.py > log.txt"]'),
        ("python train.py 2>&1", "2>&1", "python train.py 2>&1"),
        ("a && b", "&&", "a && b"),
        (["python", "train.py", "--dir=$HOME/data"], "--dir=$HOME/data", "--dir=$HOME/data"),
        (["python", "train.py", "${HOME}"], "${HOME}", "${HOME}"),
        (["python", "~/train.py"], "~/train.py", "~/train.py"),
        (["FOO=1", "python"], "FOO=1", "FOO=1 python"),
        (["python", "$(date)"], "$(date)", "$(date)"),
    ],
)
def test_shell_syntax_is_warned_of_with_the_remedy(command: Any, word: str, remedy: str) -> None:
    (warning,) = program_rules.check_commands(made({**SMALLEST_LOCAL, "command": command}))
    assert (warning.severity, warning.where, repr(word) in warning.message) == ("warning", "command", True)
    assert remedy in warning.hint


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", "cd ~/x && FOO=$BAR python train.py > log"],
        ["python", "-c", "print('$X > y')"],
        ["~/venv/bin/python", "train.py"],
        ["python", "train.py", "--data=${host:DATA}", "a>b", "^x$", "--lr=1"],
        ["env", "FOO=1", "python"],
    ],
)
def test_what_is_for_a_shell_and_what_tflaunch_expands_is_fine(command: list[str]) -> None:
    assert [*program_rules.check_commands(made({**SMALLEST_LOCAL, "command": command}))] == []
