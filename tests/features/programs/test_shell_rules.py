"""Commands in shell syntax, which no shell reads."""

from __future__ import annotations

from typing import Any

import pytest

from support.specs import SMALLEST_LOCAL, made
from tflaunch.features.programs.program_rules import check_commands

pytestmark = pytest.mark.unit


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
    (warning,) = check_commands(made({**SMALLEST_LOCAL, "command": command}))
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
    assert [*check_commands(made({**SMALLEST_LOCAL, "command": command}))] == []
