"""`tflaunch bench` runs a spec with several numbers of workers, and ends each run."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from support.launch import Launch
from tflaunch.cli.json_output import schema_of_output
from tflaunch.client import runs

STEPS = "i=0; while :; do i=$((i+1)); echo {'\"step\"': $i} > $TFLAUNCH_PROGRESS; sleep 0.05; done"


def spec(launch: Launch, command: str = STEPS, **fields: Any) -> Path:
    return launch.spec(**{"cluster": {"worker": 2}, "command": ["sh", "-c", command], "strategy": "none", **fields})


def live(launch: Launch) -> list[Path]:
    return [path for path in (launch.home / "runs").iterdir() if runs.is_live(path)]


def test_a_local_spec_gets_more_workers_than_it_has(launch: Launch) -> None:
    ended = launch.succeed("bench", spec(launch), "--workers", "3,1", "--warm-up", "2", "--batch", "8", "--json")
    found = json.loads(ended.stdout)
    jsonschema.validate(found, schema_of_output("bench"))
    assert [run["workers"] for run in found["runs"]] == [1, 3]
    assert [len(runs.plan_of(launch.home / "runs" / run["run"]).tasks) for run in found["runs"]] == [1, 3]
    for run in found["runs"]:
        assert run["steps"] >= 50
        assert run["examples_per_second"] == pytest.approx(8 * run["steps_per_second"])
    assert not live(launch)


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("true", 2, "1 worker: the run ended without a step; steps are read from progress.report()"),
        ("exit 7", 7, "1 worker: the run failed: worker:0 exited with code 7; `tflaunch logs "),
        pytest.param("sleep 9999", 124, "1 worker: the run was stopped after --limit 2s without a step",
                     marks=pytest.mark.thorough),
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_measured_is_explained(launch: Launch, command: str, code: int, said: str) -> None:
    limit = ("--limit", "2s") if code == 124 else ()
    ended = launch.run("bench", spec(launch, command), "--workers", "1,2", *limit, code=code)
    assert said in ended.stderr
    assert "2 workers" not in ended.stderr
    assert not live(launch)
