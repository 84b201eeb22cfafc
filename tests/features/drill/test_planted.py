"""Faults of resuming that are planted in a small program, and the verdict about each; right programs are proved."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from support.launch import Launch
from tflaunch.cli.json_output import schema_of_output

PROGRAM = Path(__file__).parent / "programs/loop.py"
THOROUGH = pytest.mark.thorough

RIGHT = ["right", "in_place", "never_fires", "saves_at_term", "keeps_best"]
PLANTED = {
    "none": "no_checkpoint",
    "rare": "no_checkpoint",
    "late_first": "none_before",
    "never": "never_read",
    "directory": "other_directory",
    "late": "read_late",
    "not_used": "not_used",
    "counter": "counter",
    "only_chief": "tasks_differ",
    "other_steps": "tasks_differ",
    "weights_only": "weights_only",
    "optimizer": "optimizer",
    "hidden_rate": "optimizer",
    "rate": "rate",
    "data": "data",
    "one_path": "several_writers",
    "damaged": "not_recovered",
    "exits_0": "exits_0",
    "best": "best",
}
EVALUATED = {"keeps_best", "best"}
IN_EVERY_RUN = {"right", "optimizer", "one_path", "exits_0"}


def drill(launch: Launch, fault: str, code: int, *options: str) -> dict[str, Any]:
    """Return what `drill --json` prints about the program with a fault."""
    shutil.copy(PROGRAM, launch.directory)
    kind = "term" if fault in ("exits_0", "never_fires", "saves_at_term") else "kill"
    spec = launch.spec(
        cluster={"worker": 2, **({"evaluator": 1} if fault in EVALUATED else {})},
        command=["python", "loop.py"],
        strategy="none",
        env={"FAULT": fault, "TASKS": "2"},
        restart={"backoff": [0, 0]},
    )
    options += ("--task", "evaluator:0", "--at", "38") if fault in EVALUATED else ()
    ended = launch.run("drill", spec, "--fault", kind, "--json", *options, code=code)
    found: dict[str, Any] = json.loads(ended.stdout)
    jsonschema.validate(found, schema_of_output("drill"))
    assert sorted(os.listdir(launch.directory)) == ["home", "job.json", "loop.py"], "it wrote into the user's directory"
    assert not any((launch.home / "runs").iterdir())
    return found


@pytest.mark.parametrize(
    "fault", [pytest.param(each, marks=[] if each in IN_EVERY_RUN else THOROUGH) for each in PLANTED]
)
def test_a_planted_fault_is_named(launch: Launch, fault: str) -> None:
    found = drill(launch, fault, 1)
    assert found["verdict"] == "not proved"
    (judged,) = found["drills"]
    faults = [finding for finding in judged["findings"] if finding["is_fault"]]
    assert [finding["kind"] for finding in faults] == [PLANTED[fault]]
    assert faults[0]["remedy"]


@pytest.mark.parametrize(
    "fault", [pytest.param(each, marks=[] if each in IN_EVERY_RUN else THOROUGH) for each in RIGHT]
)
def test_a_right_program_is_proved(launch: Launch, fault: str) -> None:
    found = drill(launch, fault, 0)
    assert found["verdict"] == "proved"
    (judged,) = found["drills"]
    said = {finding["kind"] for finding in judged["findings"]}
    assert said == {"resumed"} | {"in_place": {"in_place"}, "never_fires": {"term"}}.get(fault, set())


@pytest.mark.thorough
def test_all_faults_can_follow_one_undisturbed_training(launch: Launch) -> None:
    found = drill(launch, "saves_at_term", 0, "--all", "--twice", "--steps", "50")
    assert len(found["drills"]) == 4
    assert [judged["fault"] for judged in found["drills"]] == [
        "worker:1 was killed",
        "worker:1 got TERM",
        "worker:0, worker:1 were killed",
        "worker:0 was killed",
    ]
