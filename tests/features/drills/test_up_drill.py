"""`up --drill`: faults on request, and whether the job recovered."""

from __future__ import annotations

from typing import Any

import pytest

from support.launch import Launch

pytestmark = pytest.mark.cli

TRAIN = "echo up $TFLAUNCH_ATTEMPT; test $TFLAUNCH_ATTEMPT = 0 && sleep 9999; true"
AFTER = "until grep -qs {} $TFLAUNCH_HOME/runs/*/events.jsonl; do sleep 0.02; done; "
# In brackets, so that it does not match the command itself, which the first record has.
AFTER_FAULT, AFTER_CUT = AFTER.format("[f]ault_injected"), AFTER.format("[l]ink_restored")
PLAIN: dict[str, Any] = {"strategy": "none", "restart": {"max": 1, "backoff": [0, 0]}}


def test_a_drill_strikes_the_real_run_and_says_whether_it_recovered(launch: Launch) -> None:
    ended = launch.succeed("up", launch.shell(TRAIN, **PLAIN), "--drill", "kill worker:1 after 0.2s")
    assert "tflaunch: drill: kill worker:1 after 0.2 s\n" in ended.stderr
    assert "tflaunch: worker:1 failed; ending worker:0\n" in ended.stderr
    assert "tflaunch: drill: kill worker:1 after 0.2 s: all tasks ran again after " in ended.stderr
    assert [record["what"] for record in launch.journal() if record["kind"] == "fault_injected"] == [
        "kill worker:1 after 0.2 s"
    ]


def test_a_cut_link_loses_no_line(launch: Launch) -> None:
    script = AFTER_FAULT + "for i in $(seq 1000); do echo $i; done; " + AFTER_CUT
    spec = launch.shell(script, strategy="none", timeouts={"lease": 600})
    ended = launch.succeed("up", spec, "--drill", "cut host=localhost for 0.5s")
    assert "the link to localhost is restored" in ended.stderr
    assert launch.log("worker:0") == "".join(f"{number}\n" for number in range(1, 1001))


def test_a_drill_that_could_not_be_done_is_no_success(launch: Launch) -> None:
    """A test that tested nothing must not look like one that passed."""
    ended = launch.up(launch.shell("true", strategy="none"), "--drill", "kill worker:1 after 1m", code=125)
    assert "not done, the job had ended before" in ended.stderr
