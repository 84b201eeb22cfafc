"""Mistakes that people make (mistakes.yaml): each answer names place, cause and remedy; its commands work."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.documents import check_usage
from support.specs import tflaunch
from tflaunch.cli.main import run_command_line

pytestmark = pytest.mark.cli

CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text())
_PRINTED = re.compile(r"`(tflaunch [^`]+)`|(?:try|next|example|run it with|after `--`): (tflaunch .+)")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["mistake"])
def test_the_answer_names_place_cause_and_remedy(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, unless tasks are started."""
    for name, text in case.get("files", {}).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    arguments, home = shlex.split(case["run"]), tmp_path / "home"
    if case.get("is_started"):
        ended = tflaunch(*arguments, home=home, cwd=tmp_path)
        code, answer = ended.returncode, ended.stdout + ended.stderr
    else:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("TFLAUNCH_HOME", str(home))
        monkeypatch.setattr(sys, "argv", ["tflaunch", *arguments])
        code = run_command_line()
        answer = "".join(capsys.readouterr())
    answer = answer.replace(str(tmp_path), "DIR")
    assert code == case["code"], answer
    assert [part for part in ("place", "cause", "remedy") if case[part] not in answer] == [], answer
    assert "Traceback" not in answer or case["mistake"] == "a module that is missing", answer
    for command in _PRINTED.findall(answer):
        check_usage("".join(command))


def test_there_are_a_hundred_and_no_two_are_the_same() -> None:
    """By what is typed, in which files."""
    assert len(CASES) >= 100
    assert len({(case["run"], str(case.get("files"))) for case in CASES}) == len(CASES)
    assert len({case["mistake"] for case in CASES}) == len(CASES)
