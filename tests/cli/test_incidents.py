"""30 incidents, and a plain program that follows `next_commands` only: nearly all end right, and none does harm."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli.incidents.table import DOCKER, INCIDENTS, STEPS, Incident
from support.launch import PATIENCE, Launch
from support.waiting import wait_until

FOLLOWER = Path(__file__).parent / "incidents" / "follow.py"
HARM = {"down", "kill", "prune", "restart", "rerun"}
EVERY_DAY = ("a failed import", "a killed supervisor", "a live run that trains", "two live runs of one name")


@pytest.mark.parametrize(
    "incident",
    [
        pytest.param(each, id=each.name, marks=[] if each.name in EVERY_DAY else [pytest.mark.thorough])
        for each in INCIDENTS
    ],
)
def test_what_is_proposed_helps_and_does_no_harm(incident: Incident, launch: Launch) -> None:
    (launch.directory / "steps.py").write_text(STEPS)
    launch.install("docker", DOCKER.format(here=launch.directory))
    prepared = launch.paste(incident.script)
    followed = subprocess.run(
        [sys.executable, FOLLOWER, *incident.asked.split()],
        cwd=launch.directory, env=launch.env, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert followed.returncode == 0, prepared.stderr + followed.stderr
    answer = json.loads(followed.stdout)
    live = [run["run"] for run in json.loads(launch.succeed("ls", "--json", "--state", "live").stdout)]
    if live:
        launch.succeed("down", "--all")
        wait_until(lambda: not launch.survivors())  # the process of a run that waited sees that within seconds
    if incident.phase is not None:
        (first,) = answer["first"]
        assert (first["phase"], first["trains"]) == (incident.phase, incident.trains), first["because"]
    assert len(live) == incident.lives, answer
    assert not HARM & {command[1] for command in answer["did"]}
    verbs = tuple(command[1] for command in answer["did"])
    is_right = verbs == incident.right and incident.says in answer["read"]
    assert is_right != bool(incident.flaw), (verbs, answer["read"], prepared.stderr)


def test_at_most_four_incidents_end_wrong() -> None:
    assert (len(INCIDENTS), len({each.name for each in INCIDENTS})) == (30, 30)
    assert sum(bool(each.flaw) for each in INCIDENTS) <= 4
