"""The agent's side of `exec`, where no process is needed."""

from __future__ import annotations

from typing import Any

import pytest

from support.played_agent import Answers, agent_parts
from tflaunch_worker.agent import orders
from tflaunch_worker.features.exec.host_commands import NOT_STARTED, HostCommands
from tflaunch_worker.features.exec.running_command import PART, WINDOW, check_told

pytestmark = pytest.mark.unit

ASKED: dict[str, Any] = {"task": "worker:0", "argv": ["ls"], "grace": 1.0, "columns": 0, "rows": 0, "term": ""}


def test_a_task_without_an_environment_is_one_sentence() -> None:
    answer, _ = Answers().ask(HostCommands(agent_parts(tasks={})).run_command, **ASKED)
    problem = "worker:0 has not started on its host yet; `tflaunch ps` shows when it has"
    assert answer == {"code": NOT_STARTED, "problem": problem}


@pytest.mark.parametrize(
    ("field", "value"),
    [("task", "../x"), ("argv", ["a\0"]), ("argv", None), ("rows", 2**20), ("term", 5), ("grace", -1)],
)
def test_a_malformed_command_is_refused(field: str, value: object) -> None:
    checks = HostCommands.CALLS["run_command"]
    orders.check(ASKED, checks)
    with pytest.raises(ValueError, match=rf"'{field}'|name of a task"):
        orders.check({**ASKED, field: value}, checks)


@pytest.mark.parametrize(
    ("told", "size"),
    [
        ({"what": "input"}, 0),
        ({"what": "input"}, PART + 1),
        ({"what": "took", "size": WINDOW + 1}, 0),
        ({"what": "resize", "rows": 1}, 0),
        ({}, 1),
    ],
)
def test_what_a_command_cannot_be_told_is_refused(told: dict[str, Any], size: int) -> None:
    assert check_told({"what": "input"}, PART) == "input"
    with pytest.raises(ValueError, match=r"'what'|'size'|'columns'|cannot be told"):
        check_told(told, size)
