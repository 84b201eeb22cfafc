"""What is found in a program, whatever file it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.specs import REPOSITORY
from tflaunch.features.programs.program_reader import Program, find_file, read_program

pytestmark = pytest.mark.unit

MIRRORED = "import tensorflow as tf\nstrategy = tf.distribute.MirroredStrategy()\n"


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
    """Nothing is known of it then."""
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


def test_other_encodings(tmp_path: Path) -> None:
    """As Python reads them."""
    assert read(tmp_path, b"# coding: latin-1\nname = '\xe4'\n" + MIRRORED.encode()).strategies
    assert read(tmp_path, b"\xef\xbb\xbf" + MIRRORED.replace("\n", "\r\n").encode()).strategies


def test_many_modules_are_read_up_to_a_limit(tmp_path: Path) -> None:
    """Also those that import each other; what is left out is not taken for read."""
    for number in range(300):
        (tmp_path / f"m{number}.py").write_text(f"import m{(number + 1) % 300}\nimport m{number // 2}\n")
    assert not read(tmp_path, f"import m0\n{MIRRORED}").is_complete
    assert read(tmp_path, MIRRORED).is_complete


@pytest.mark.filterwarnings("error")
def test_a_warning_about_its_syntax_is_not_printed(tmp_path: Path) -> None:
    """Python would warn of the escape."""
    assert read(tmp_path, "x = '\\d'\n" + MIRRORED).strategies


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("p.add_argument('--data_dir', '-d')\np.add_argument('--epochs')", ("--data_dir",)),
        ("p.add_argument('-o', '--output-path', default='x')", ("--output-path",)),
        ("p.add_argument('--logdir')\np.add_argument('--checkpoint_dir')", ("--logdir", "--checkpoint_dir")),
        ("flags.DEFINE_string('model_dir', None, 'Where.')", ("--model_dir",)),
        ("@click.option('--root', help='x')\ndef main(root): pass", ("--root",)),
        ("p.add_argument('--database')\np.add_argument('--profile')\np.add_argument('data')", ()),
    ],
)
def test_options_that_are_paths(tmp_path: Path, text: str, options: tuple[str, ...]) -> None:
    """By their names."""
    assert read(tmp_path, text).path_options == options


def test_our_own_programs_are_read(tmp_path: Path) -> None:
    """All of them, and nothing certain is said of those that choose their strategy by the plan."""
    for path in (REPOSITORY / "worker" / "tflaunch_worker" / "examples").glob("*.py"):
        assert not read_program(path, path.parent).problem
