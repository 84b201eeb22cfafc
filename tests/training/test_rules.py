"""Supervision rules that can be tested without TensorFlow; the others are in test_supervision.py."""

from __future__ import annotations

from typing import Any

import pytest

from support.launch import Launch

pytestmark = pytest.mark.cli

AT_ONCE = [0, 0]
SLEEP = "exec sleep 300"


def starts(launch: Launch, task: str) -> list[int]:
    """Return the attempts of a task that were started."""
    return [r["attempt"] for r in launch.journal() if r["kind"] == "task_started" and r["task"] == task]


@pytest.mark.parametrize("culprit", ["1", "$((TFLAUNCH_ATTEMPT % 2))"], ids=["same task", "whoever is first"])
def test_a_crash_loop_is_left_before_the_budget_is_spent(launch: Launch, culprit: str) -> None:
    """SIGSEGV right after the start: three times in a row are enough, whichever rank dies first."""
    script = f"[ $TFLAUNCH_TASK = worker:{culprit} ] && kill -SEGV $$; {SLEEP}"
    ended = launch.up(launch.shell(script, restart={"max": 5, "backoff": AT_ONCE}))
    assert ended.returncode == 139
    assert "crash loop" in ended.stderr
    assert starts(launch, "worker:1") == [0, 1, 2]


def with_evaluator(launch: Launch, script: str, **evaluator: Any) -> Any:
    """Run a job with a budget of one restart whose evaluator always ends with 5."""
    role = {"command": ["sh", "-c", "exit 5"], **evaluator}
    fields: dict[str, Any] = {"cluster": {"worker": 1, "evaluator": 1}, "roles": {"evaluator": role}}
    return launch.up(launch.shell(script, restart={"max": 1, "backoff": AT_ONCE}, **fields))


def test_a_required_evaluator_that_fails_for_good_fails_the_job(launch: Launch) -> None:
    """With its code, after being restarted alone."""
    ended = with_evaluator(launch, SLEEP, required=True)
    assert ended.returncode == 5
    assert "evaluator:0 exited with code 5" in ended.stderr
    assert starts(launch, "evaluator:0") == [0, 1]
    assert starts(launch, "worker:0") == [0]


def test_any_other_evaluator_may_fail_for_good(launch: Launch) -> None:
    """The job continues without it."""
    wait = f'until grep -q \'evaluator:0.*"attempt":1.*"code":5\' {launch.home}/runs/*/events.jsonl; do sleep 0.1; done'
    ended = with_evaluator(launch, wait)
    assert ended.returncode == 0, ended.stderr
    assert "evaluator:0 exited with code 5; the job goes on without it" in ended.stderr
    assert starts(launch, "evaluator:0") == [0, 1]


def test_a_required_sidecar_that_fails_for_good_fails_the_job(launch: Launch) -> None:
    """Likewise."""
    sidecars = {"data": {"command": ["sh", "-c", "exit 6"], "required": True}}
    ended = launch.up(launch.shell(SLEEP, sidecars=sidecars, restart={"max": 1, "backoff": AT_ONCE}))
    assert ended.returncode == 6
    assert "data exited with code 6" in ended.stderr
