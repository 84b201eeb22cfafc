"""A program that trains alone in each task is named before the start, whichever command starts it."""

import pytest

from support.launch import Launch

PROGRAM = "import sys\nsys.exit(3)\nimport tensorflow as tf\nmodel.fit(x, epochs=2)\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "a.json"),
        ("plan", "a.json"),
        ("up", "a.json"),
        ("run", "-n", 2, "python", "train.py"),
        ("bench", "a.json", "--workers", "1,2"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_each_command_warns_of_it_once(launch: Launch, arguments: tuple[object, ...]) -> None:
    (launch.directory / "train.py").write_text(PROGRAM)
    (launch.directory / "a.json").write_text('{"cluster": {"worker": 2}, "command": ["python", "train.py"]}')
    ended = launch.run(*arguments)
    it = "warning: train.py:4: trains without a strategy of tf.distribute, so each of 2 tasks trains a model of its own"
    assert (ended.stdout + ended.stderr).count(it) == 1, ended.stderr
